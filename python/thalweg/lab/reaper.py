"""Cleans up after supervisors and runs that were killed: ends their processes, removes their cgroups and folders.

The kernel removes namespaces and devices itself when no process uses them any more.
"""

from __future__ import annotations

import shutil

from thalweg.lab import cgroups, namespaces, state


def reap() -> list[str]:
    """Remove what dead supervisors and runs have left; return the names of the dead labs. Running labs stay."""
    names = []
    for folder, dead in state.dead():
        if dead.hosts:
            namespaces.end_inside(dead.hosts.values())
        shutil.rmtree(folder, ignore_errors=True)
        names.append(dead.name)
    for left in cgroups.left():
        cgroups.remove(left)
    return names
