"""A worker of an aggregation tree. Its standard input is a socket of its node: it folds for the node until that closes.

With the argument ``template`` it is a template instead: a process with one thread that forks a worker each time that
its node asks for one. With ``hop MOST`` it is a hop, which is a broker or a side process: it passes messages of at most
``MOST`` bytes on between node and worker, over standard input and output.

This file is run by its path, ``python -I -S aggregator.py CORE``, and loads the compiled core by the core's path. So it
starts fast, without the package and without site-packages.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

NAME = "thalweg._core"


def main(core: str, *what: str) -> None:
    """Load the core from the file ``core``, and be a worker, a hop or a template."""
    spec = spec_from_file_location(NAME, core, loader=ExtensionFileLoader(NAME, core))
    if spec is None or spec.loader is None:
        sys.exit(f"{core} is no compiled core")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    if what[:1] == ("hop",):
        module.tree_hop(int(what[1]))
        return
    if what == ("template",) and not fork_workers(module):
        return  # the template itself, after its node has closed the socket
    module.tree_work()


def fork_workers(module: ModuleType) -> bool:
    """Fork a worker for each request of the node. Returns True in each worker, and False in the template at the end."""
    while (socket := module.tree_asked()) is not None:
        worker = os.fork()
        if worker == 0:
            os.dup2(socket, 0)  # replaces the template's own socket in the worker
            os.close(socket)
            return True
        # Now only the worker holds this end of the socket, so the node sees the socket close when the worker ends.
        os.close(socket)
        module.tree_forked(worker)
        reap()  # safe: the node has a pidfd of each worker by now, so a reused process id cannot mislead it
    reap()
    return False


def reap() -> None:
    """Collect the exit status of workers that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
