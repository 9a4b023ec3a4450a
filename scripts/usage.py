"""The parser of a script's command line: ``--help`` prints the script's docstring."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter


def parser(text: str | None) -> ArgumentParser:
    """Return a parser without arguments of its own. ``text`` is the script's docstring."""
    return ArgumentParser(description=text, formatter_class=RawDescriptionHelpFormatter)
