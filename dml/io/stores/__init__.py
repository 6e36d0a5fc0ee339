"""Object stores: files by URL, ranges of bytes, uploads, transient and permanent errors."""
