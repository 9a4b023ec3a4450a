"""Reads Flame's schemas (Topology Abstraction Graphs), for the groups of clients and the nodes that serve them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from thalweg import _core, wire
from thalweg.errors import PlanError
from thalweg.sections.trees import MOST_LEVELS, NodesSection, TreeSection

LARGEST_FILE: Final = 1 << 20
# A schema with at least so many channels between clients and top has middle nodes.
CHANNELS_WITH_MIDDLES: Final = 3


@dataclass(frozen=True)
class Groups:
    """``clients``: the labels of the clients' groups. ``nodes``: for each node, the index of its group in ``clients``.

    Without ``nodes`` each node serves all clients.
    """

    clients: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()

    def of_node(self, place: int) -> int | None:
        """Return the index of a node's group among the clients' groups; None if it serves all clients."""
        return self.nodes[place % len(self.nodes)] if self.nodes else None


@dataclass(frozen=True)
class Group:
    """A group of clients, and the line of the schema that names it."""

    label: str
    line: int


@dataclass(frozen=True)
class Role:
    """A role, how many channels are between it and the clients, and the line of the schema that names it."""

    name: str
    level: int
    line: int


@dataclass(frozen=True)
class Channel:
    """A channel between two roles, with its groups if it is divided."""

    name: str
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Schema:
    """A schema as a tree: roles and channels in order, beginning next to the clients."""

    roles: tuple[Role, ...]
    channels: tuple[Channel, ...]


def read(path: Path) -> Schema:
    """Return the schema in a file. Raises PlanError."""
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise PlanError(f"cannot read the schema {path}: {error.strerror}", "Give the path of a JSON file") from error
    if len(content) > LARGEST_FILE:
        raise PlanError(f"{path} has more than {LARGEST_FILE} bytes", "Give the path of a schema")
    try:
        return wire.decode(Schema, _core.tree_schema(content.decode()))
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} is not text in UTF-8", "Save it as UTF-8") from error
    except _core.CoreError as error:
        raise PlanError(f"{path}, {error.operation}: {error.cause}", error.hint) from None


def groups(tree: TreeSection, nodes: NodesSection) -> Groups:
    """Return a plan's groups. Raises PlanError for a wrong schema, or groups that the plan's nodes cannot serve."""
    if tree.tag is None:
        labels = tuple(dict.fromkeys(nodes.groups or ()))
        _check_count(labels, nodes)
        return Groups(labels, tuple(labels.index(label) for label in nodes.groups or ()))
    schema = read(Path(tree.tag))
    labels_of_groups = schema.channels[0].groups
    labels = tuple(group.label for group in labels_of_groups)
    served = tuple(dict.fromkeys(nodes.groups or labels))
    for group in labels_of_groups:
        if group.label not in served:
            raise PlanError(
                f"{tree.tag}, line {group.line}: no node serves the group {group.label!r}",
                f"Add it to nodes.groups, which has {', '.join(served)}, or remove nodes.groups",
            )
    for label in served:
        if label not in labels:
            known = f"Known: {', '.join(labels)}" if labels else "The schema has no groups: remove nodes.groups"
            raise PlanError(f"nodes.groups names {label!r}, which is no group of {tree.tag}", known)
    _check_count(nodes.groups or labels, nodes, tree.tag)
    return Groups(labels, tuple(labels.index(label) for label in nodes.groups or labels))


def levels_of_middles(path: str, tree: TreeSection, nodes: NodesSection) -> tuple[Role, list[list[int]]]:
    """Return the top of the schema in a file, and the middle nodes between it and a plan's nodes.

    For each level, from the clients upwards, the list has the place of the middle node above each node of the level
    below. Each group of a channel between aggregators has one middle node. Raises PlanError.
    """
    schema, served = read(Path(path)), groups(tree, nodes)
    top = schema.roles[-1]
    if top.level < CHANNELS_WITH_MIDDLES:
        return top, []
    if top.level - CHANNELS_WITH_MIDDLES >= MOST_LEVELS:
        raise PlanError(
            f"{path}, line {top.line}: {top.name!r} is {top.level} channels above the clients, and there are at most "
            f"{MOST_LEVELS} levels of middle nodes",
            "Remove levels of aggregators from the schema",
        )
    for before, role in pairwise(schema.roles):
        if role.level == before.level:
            raise PlanError(
                f"{path}, line {role.line}: {role.name!r} is on the same level as {before.name!r}",
                "Keep one role on each level",
            )
    labels: list[str | None] = [
        None if group is None else served.clients[group] for group in map(served.of_node, range(nodes.count))
    ]
    levels = []
    for channel in schema.channels[1:-1]:
        outer = [group.label for group in channel.groups]
        levels.append([_place_above(place, label, outer) for place, label in enumerate(labels)])
        labels = [*outer] or [None]
    return top, levels


def _place_above(place: int, label: str | None, outer: list[str]) -> int:
    """Return which group of the channel above a node belongs to: that of its label, else the next one in turn."""
    if not outer:
        return 0
    if label is None:
        return place % len(outer)
    # The core has checked that there is one.
    fits = [at for at, one in enumerate(outer) if f"{label}/".startswith(f"{one}/")]
    return max(fits, key=lambda at: len(outer[at]))


def _check_count(labels: tuple[str, ...] | list[str], nodes: NodesSection, path: str = "nodes.groups") -> None:
    if len(labels) > nodes.count:
        raise PlanError(
            f"{path} has {len(labels)} groups for {nodes.count} nodes, and each needs a node of its own",
            f"Give nodes.count = {len(labels)}, or fewer groups",
        )
