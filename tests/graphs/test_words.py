"""Names of graphs, such as "ring": which are accepted, and which are refused."""

from __future__ import annotations

import pytest

from thalweg.errors import PlanError
from thalweg.graphs import Word, parse


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("ring", Word("ring", "ring")),
        ("one-peer", Word("one-peer", "one-peer")),
        ("3-regular", Word("3-regular", "regular", degree=3)),
        ("7-regular,dynamic", Word("7-regular,dynamic", "regular", degree=7, dynamic=True)),
        ("small-world:4,0.1", Word("small-world:4,0.1", "small-world", 4, 0.1)),
        ("small-world:4,1,dynamic", Word("small-world:4,1,dynamic", "small-world", 4, 1.0, dynamic=True)),
        ("random:0.3", Word("random:0.3", "random", probability=0.3)),
        ("file:my graph.edges", Word("file:my graph.edges", "file", path="my graph.edges")),
        ("file:a,dynamic", Word("file:a,dynamic", "file", path="a,dynamic")),
    ],
)
def test_words_are_read(text: str, word: Word) -> None:
    assert parse(text) == word


@pytest.mark.parametrize(
    ("text", "cause", "hint"),
    [
        ("rings", "unknown graph 'rings'", "Did you mean 'ring'?"),
        ("", "unknown graph ''", "Write ring, K-regular"),
        ("-3-regular", "unknown graph '-3-regular'", "Did you mean '3-regular'?"),
        ("٣-regular", "unknown graph", "K-regular"),
        ("random:1.5", "a probability of 1.5", "Give 0 to 1"),
        ("random:1e3", "unknown graph", "random:P"),
        ("small-world:4", "unknown graph", "small-world:K,P"),
        ("ring,dynamic", "not drawn by the seed", "Remove ,dynamic, or take 3-regular,dynamic"),
        ("one-peer,dynamic", "not drawn by the seed", "Remove ,dynamic"),
        ("file:", "names no file", "Write file:PATH"),
    ],
)
def test_what_means_no_graph_is_refused(text: str, cause: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse(text)
    assert cause in caught.value.cause
    assert hint in caught.value.hint
