"""Files in object stores are accessed here: by URL, in byte ranges, with uploads and retries."""
