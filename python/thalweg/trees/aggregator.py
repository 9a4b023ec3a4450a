"""A worker of an aggregation tree: it folds for the node whose socket is its standard input, until that closes it.

With ``hop MOST`` it is a broker or a side process between the two instead: it passes messages of at most so many
bytes on between standard input and output.

This file is run by its path, ``python -I -S aggregator.py CORE``, and loads the compiled core by the core's path: so it
starts without the package, without site-packages and in a few milliseconds.
"""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location

NAME = "thalweg._core"


def main(core: str, *hop: str) -> None:
    """Load the core from its file, and work, or be a hop."""
    spec = spec_from_file_location(NAME, core, loader=ExtensionFileLoader(NAME, core))
    if spec is None or spec.loader is None:
        sys.exit(f"{core} is no compiled core")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    if hop:
        module.tree_hop(int(hop[1]))
    else:
        module.tree_work()


if __name__ == "__main__":
    main(*sys.argv[1:])
