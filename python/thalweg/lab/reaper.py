"""Cleans up after keepers and runs that were killed: processes, groups, folders. Namespaces and devices end alone."""

from __future__ import annotations

import shutil

from thalweg.lab import cgroups, namespaces, state


def reap() -> list[str]:
    """Remove what the dead left and return the names of their labs. What runs is left alone."""
    names = []
    for folder, found in state.dead():
        if found.hosts:
            namespaces.end_inside(found.hosts.values())
        shutil.rmtree(folder, ignore_errors=True)
        names.append(found.name)
    for left in cgroups.left():
        cgroups.remove(left)
    return names
