"""``python -m thalweg``."""

from __future__ import annotations

from thalweg.cli import main

if __name__ == "__main__":
    main()
