"""The program ``thalweg``, also ``python -m thalweg``."""

from __future__ import annotations

import sys

from thalweg.machine.grace import leave, remember_interrupts

__all__ = ["main"]

INTERRUPTED = 130


def main() -> None:
    """Run the program. Importing the commands takes a moment, in which Ctrl-C may come as well."""
    remember_interrupts()
    try:
        from thalweg.cli import main as commands

        commands()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        leave(INTERRUPTED)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            leave(INTERRUPTED)
        raise


if __name__ == "__main__":
    main()
