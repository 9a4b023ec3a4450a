"""Edge files of DecentralizePy: how they are read, and each error with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from thalweg.errors import PlanError
from thalweg.graphs import edges, schedule

STAR = "4\n0 1\n0 2\n0 3\n1 0\n2 0\n3 0"


def test_an_edge_may_stand_once_or_once_in_each_direction(tmp_path: Path) -> None:
    both, once = tmp_path / "both.edges", tmp_path / "once.edges"
    both.write_text(STAR)
    once.write_text("4\n0 1\n2 0\n\n0 3\n")
    assert edges.read(both, 4) == edges.read(once, 4)
    assert schedule(f"file:{both}", 4, 0).links.edges == ((0, 1), (0, 2), (0, 3))


@pytest.mark.parametrize(
    ("text", "cause", "hint"),
    [
        ("", "line 1 of {path} is '', not a number of nodes", "Begin with the number of nodes"),
        ("0 1\n1 2", "line 1 of {path} is '0 1', not a number of nodes", "an edge a line"),
        ("6\n0 1", "has 6 nodes where job.clients is 4", "Give --clients 6"),
        ("4\n0 1\n1 1", "line 3 of {path} is a loop: it joins node 1 with itself", "Remove it"),
        ("4\n0 1\n1 0\n0 1", "line 4 of {path} repeats the edge 0 1 of line 2", "Remove one of them"),
        ("4\n0 1\n0 4", "line 3 of {path} names node 4, of 4 nodes", "from 0 to 3"),
        ("4\n0 -1", "line 2 of {path} is '0 -1', not an edge", "as: 0 1"),
        ("4\n0 1 2", "line 2 of {path} is '0 1 2', not an edge", "as: 0 1"),
        ("4\n0 1\n2 3", "line 3 is of another part than node 0", "as: 0 2"),
        ("4\n0 1\n1 2", "node 3 has no edge", "as: 0 3"),
    ],
)
def test_what_is_no_graph_is_refused_with_its_line(tmp_path: Path, text: str, cause: str, hint: str) -> None:
    path = tmp_path / "graph.edges"
    path.write_text(text)
    with pytest.raises(PlanError) as caught:
        edges.read(path, 4)
    assert cause.format(path=path) in caught.value.cause
    assert hint in caught.value.hint


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot read the graph"):
        edges.read(tmp_path / "none", 4)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match="not text in UTF-8"):
        edges.read(tmp_path / "bytes", 4)
