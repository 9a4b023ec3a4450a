"""Nodes of a graph through the compiled core: a ring that mixes over kernel TCP."""

import json
import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from thalweg import _core

NAMES = ("a", "b", "c", "d")
LIMIT = 60.0


def layout() -> _core.Layout:
    return _core.Layout([("w", "F32", [50_000]), ("seen", "I64", [])])


class Trainer:
    """A node of the ring, and its model."""

    def __init__(self, name: str, value: float, **config: object) -> None:
        self.name = name
        self.arena = _core.Arena(layout())
        self.weights = self._view()
        self.weights[:] = value
        self.node = _core.Node(self.arena, name, "tcp://127.0.0.1:0", json.dumps(config))
        at = NAMES.index(name)
        self.neighbours = (NAMES[at - 1], NAMES[(at + 1) % len(NAMES)])

    def _view(self) -> npt.NDArray[np.float32]:
        _, _, _, offset = self.arena.layout.tensors[0]
        bytes_ = np.asarray(self.arena)[offset : offset + 4 * 50_000]
        return bytes_.view(np.float32)

    def iterate(self, count: int) -> list[dict[str, object]]:
        mixing = json.dumps(dict.fromkeys(self.neighbours, 0.25))
        reports: list[dict[str, object]] = []
        for number in range(1, count + 1):
            self.node.begin(number, mixing, None)
            assert self.node.ready(number) == number
            report = self.node.wait(number, LIMIT)
            assert report is not None, "it waits in vain"
            reports.append(json.loads(report))
        return reports


@pytest.fixture
def ring() -> Iterator[list[Trainer]]:
    trainers = [Trainer(name, float(value), graph="ring") for value, name in enumerate(NAMES)]
    urls = {trainer.name: trainer.node.address for trainer in trainers}
    for trainer in trainers:
        trainer.node.meet(json.dumps({name: urls[name] for name in trainer.neighbours}))
    yield trainers
    for trainer in trainers:
        trainer.node.close("done")


def test_a_ring_of_four_mixes(ring: list[Trainer]) -> None:
    assert [trainer.node.gather(2, LIMIT) for trainer in ring] == [2, 2, 2, 2]
    done: dict[str, list[dict[str, object]]] = {}
    threads = [
        threading.Thread(target=lambda trainer=trainer: done.update({trainer.name: trainer.iterate(3)}))
        for trainer in ring
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mixing = np.array([[0.5, 0.25, 0, 0.25], [0.25, 0.5, 0.25, 0], [0, 0.25, 0.5, 0.25], [0.25, 0, 0.25, 0.5]])
    expected = np.linalg.matrix_power(mixing, 3) @ np.arange(4.0)
    for trainer, value in zip(ring, expected, strict=True):
        np.testing.assert_allclose(trainer.weights, value, rtol=1e-6)
        for report in done[trainer.name]:
            assert sorted(str(name) for name in report["whole"]) == sorted(trainer.neighbours)  # type: ignore[attr-defined]
            assert report["bytes_used"] == report["bytes_expected"] == 2 * len(trainer.arena)
    events = json.loads(ring[0].node.events())
    assert {event["peer"] for event in events if event["kind"] == "met"} == {"b", "d"}


def test_errors_have_a_kind_and_a_hint() -> None:
    arena = _core.Arena(layout())
    with pytest.raises(_core.CoreError, match="needs a deadline") as caught:
        _core.Node(arena, "a", "tcp://127.0.0.1:0", '{"wait": "first-chunk"}')
    assert caught.value.kind == "options"
    node = _core.Node(arena, "a", "tcp://127.0.0.1:0", "{}")
    with pytest.raises(_core.CoreError, match="begin it first") as caught:
        node.ready(1)
    assert caught.value.kind == "round"
    with pytest.raises(_core.CoreError, match=r"give \{name: weight\}"):
        node.begin(1, "[]", None)
    assert node.gather(1, 0.0) == 0
    node.close("done")
    with pytest.raises(_core.CoreError) as caught:
        node.begin(1, "{}", None)
    assert caught.value.kind == "closed"


def test_another_graph_is_refused_at_both_ends() -> None:
    nodes = [_core.Node(_core.Arena(layout()), name, "tcp://127.0.0.1:0", json.dumps({"graph": name})) for name in "ab"]
    nodes[0].meet(json.dumps({"b": nodes[1].address}))
    nodes[1].meet(json.dumps({"a": nodes[0].address}))
    for node in nodes:
        with pytest.raises(_core.CoreError, match="another graph") as caught:
            node.gather(1, LIMIT)
        assert caught.value.kind == "refused"
    for node in nodes:
        node.close("done")
