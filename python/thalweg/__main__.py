"""The program ``thalweg``, also ``python -m thalweg``."""

from __future__ import annotations

import sys

from thalweg.machine.grace import interrupted_code, leave, remember_interrupts

__all__ = ["main"]


def main() -> None:
    """Run the program.

    The import of the commands takes a moment; a signal that ends the program may arrive in that time.
    """
    remember_interrupts()
    try:
        from thalweg.cli import main as commands

        commands()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        leave(interrupted_code())
    except SystemExit as end:
        if end.code == interrupted_code():
            leave(interrupted_code())
        raise


if __name__ == "__main__":
    main()
