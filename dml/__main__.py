"""``python -m dml`` runs the command line."""

from __future__ import annotations

from dml.cli.app import main

if __name__ == "__main__":
    main()
