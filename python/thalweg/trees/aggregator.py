"""A worker of an aggregation tree: it folds for the node whose socket is its standard input, until that closes it.

With ``template`` it is a template instead: a process of one thread that forks such a worker whenever its node asks for
one. With ``hop MOST`` it is a broker or a side process between the two: it passes messages of at most so many bytes on
between standard input and output.

This file is run by its path, ``python -I -S aggregator.py CORE``, and loads the compiled core by the core's path: so it
starts without the package and without site-packages.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

NAME = "thalweg._core"


def main(core: str, *what: str) -> None:
    """Load the core from its file, and work, or be a hop or a template."""
    spec = spec_from_file_location(NAME, core, loader=ExtensionFileLoader(NAME, core))
    if spec is None or spec.loader is None:
        sys.exit(f"{core} is no compiled core")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    if what[:1] == ("hop",):
        module.tree_hop(int(what[1]))
        return
    if what == ("template",) and not fork_workers(module):
        return  # the template itself: its node is gone
    module.tree_work()


def fork_workers(module: ModuleType) -> bool:
    """Fork a worker for each request of the node. Return True in a worker, False in the template at the end."""
    while (socket := module.tree_asked()) is not None:
        worker = os.fork()
        if worker == 0:
            os.dup2(socket, 0)  # which closes the template's own socket
            os.close(socket)
            return True
        # The worker alone has it now: the node finds it closed when the worker ends.
        os.close(socket)
        module.tree_forked(worker)
        reap()  # the node has a descriptor of each by now, and so mistakes no other process for one
    reap()
    return False


def reap() -> None:
    """Wait for the workers that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
