"""Admitted nodes of a tree that send forged data: it is not counted, and does not disturb the other nodes."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pytest

from thalweg import _core, wire
from thalweg.job.tree.node import Answer, Gateway
from thalweg.job.tree.order import NodeOrder
from thalweg.job.tree.root import Tree
from thalweg.plan.options import CoreOptions
from thalweg.transports.links import Trust
from thalweg.trees.live import Placed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers share memory as Linux alone does")

URL: Final = "tcp://127.0.0.1:0"
SECRET: Final = "07" * 32
ISSUER: Final = _core.pki_issuer(SECRET)
JOB: Final = 77
HOMES: Final = {"honest": ["a", "b"], "liar": ["c"]}
ELEMENTS: Final = 1000
TOPS: Final = ("dedicated", "first-finished", "sharded")
# A function that gets a request and the true answer, and returns the answer that the node sends.
Lie = Callable[[str, dict[str, Any]], Any]


def layout() -> _core.Layout:
    return _core.Layout([("weight", "F32", [ELEMENTS])])


def constant(client: str) -> float:
    return float("abc".index(client) + 1)


def expected(clients: str) -> float:
    """Return the mean of these clients' updates. The weight of an update equals its value."""
    values = [constant(client) for client in clients]
    return float(np.float32(sum(value * value for value in values) / sum(values)))


def token(role: str, name: str) -> str:
    return _core.pki_token(SECRET, role, name)


class Liar(Gateway):
    """A correct node whose answers ``lie`` changes."""

    lie: Lie = staticmethod(lambda _asked, true_answer: true_answer)
    tensors: _core.Arena | None = None

    def _do(self, number: int, head: Mapping[str, Any], model: _core.Arena | None) -> Answer:
        true_answer, sums = super()._do(number, head, model)
        return self.lie(head["do"], wire.values_of(true_answer)), sums if sums is not None else self.tensors

    def _say(self, say: Callable[[], None]) -> None:
        with suppress(TypeError):
            super()._say(say)


class Raw(Liar):
    """A node that answers one kind of request with these bytes."""

    asked, said = "round", b""

    def _answer(self, number: int, head: bytes, model: _core.Arena | None) -> None:
        if json.loads(head)["do"] != self.asked:
            super()._answer(number, head, model)
            return
        with suppress(_core.CoreError):  # the root no longer waits for the answer
            self._parent.answer(number, self.said, None, 1.0)


@dataclass
class Job:
    tree: Tree
    model: _core.Arena
    threads: list[threading.Thread] = field(default_factory=list)

    def value(self) -> float:
        values = np.asarray(self.model).view(np.float32)
        assert (values == values[0]).all()
        return float(values[0])

    def round(self, number: int) -> dict[str, Any]:
        outcome: dict[str, Any] = json.loads(self.tree.round(number, "{}", None))
        return outcome

    def start(self, work: Callable[[], object]) -> None:
        self.threads.append(threading.Thread(target=work, daemon=True))
        self.threads[-1].start()


def order(url: str, name: str) -> NodeOrder:
    """Return the order of a node of this name, without a secret."""
    return NodeOrder(
        name=name,
        url=url,
        listen=URL,
        clients=len(HOMES[name]),
        options={"token": token("tree-node", name), "transport": {}, "tree": True, "timeout": 5.0},
        trust=Trust(issuer=ISSUER),
    )


def take_part(url: str, name: str) -> None:
    arena = _core.Arena(layout())
    client = _core.Client(url, name, json.dumps({"token": token("client", name), "timeout": 1.0}), arena)
    with suppress(_core.CoreError):
        client.join()
        while (task := client.next()) is not None:
            np.asarray(arena).view(np.float32)[:] = constant(name)
            client.submit(task[0], constant(name), "{}")
    client.close("done")


@contextmanager
def job(liar: Callable[[NodeOrder], Gateway], *, top: str = "dedicated", come: bool = False) -> Iterator[Job]:
    """Run a tree of an honest node and a lying one, each with its clients."""
    options: Any = {
        "precision": "exact",
        "transport": {},
        "seed": 0,
        "workers": {"count": 1, "split": "ranges"},
        "grace": 0.5,
        "job": JOB,
        "expected": 3,
    }
    own: CoreOptions = {"issuer": ISSUER, "job": JOB, "grace": 0.5, "transport": {}, "tree": True}
    model = _core.Arena(layout())
    made = Job(Tree(model, URL, 2 if come else Placed(HOMES, []), options, own, top=top), model)

    def serve(node: Gateway) -> None:
        with suppress(_core.CoreError):
            node.serve()

    kinds = {"honest": lambda options: Gateway(options, print), "liar": liar}
    try:
        for name, kind in kinds.items():
            node = kind(order(made.tree.address, name))
            made.start(partial(serve, node))
        made.tree.open(lambda: None)
        addresses = {node.name: node.address for node in made.tree._nodes}
        for name, clients in HOMES.items():
            for client in clients:
                made.start(partial(take_part, addresses[name], client))
        yield made
    finally:
        made.tree.close("the job is over")
        for thread in made.threads:
            thread.join(60)


def lying(lie: Lie, tensors: _core.Arena | None = None) -> Callable[[NodeOrder], Gateway]:
    def make(order: NodeOrder) -> Gateway:
        made = Liar(order, print)
        made.lie, made.tensors = lie, tensors
        return made

    return make


def in_round(change: Callable[[dict[str, Any]], object]) -> Lie:
    """Return a lie that changes the report of a round, in place or to the result of ``change``."""

    def lie(asked: str, true_answer: dict[str, Any]) -> Any:
        if asked != "round":
            return true_answer
        found = change(true_answer)
        return true_answer if found is None else found

    return lie


def counted(outcome: dict[str, Any]) -> str:
    return "".join(sorted(one["client"] for one in outcome["participants"] if one["state"] == "whole"))


def reasons(outcome: dict[str, Any]) -> str:
    return "; ".join(one["reason"] for one in outcome["participants"] if one["reason"])


def there(made: Job) -> None:
    while made.tree.wait(3, None) < 3:
        pass


def client_7(true_answer: dict[str, Any]) -> None:
    first = true_answer["outcome"]["participants"][0]
    true_answer["outcome"]["participants"].append({**first, "client": "client-7"})


def renamed(true_answer: dict[str, Any]) -> None:
    true_answer["outcome"]["participants"][0]["client"] = "a"


def heavy(true_answer: dict[str, Any]) -> None:
    true_answer["outcome"]["participants"][0]["samples"] = 1e9


def twice(true_answer: dict[str, Any]) -> None:
    true_answer["outcome"]["participants"] *= 2


def another_round(true_answer: dict[str, Any]) -> None:
    true_answer["outcome"]["round"] += 1


@pytest.mark.parametrize("top", TOPS)
def test_with_proofs_and_honest_nodes_all_count(top: str) -> None:
    with job(lying(lambda _, true_answer: true_answer), top=top) as made:
        there(made)
        for number in (1, 2):
            assert counted(made.round(number)) == "abc"
            assert made.value() == expected("abc")


@pytest.mark.parametrize("top", TOPS)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (client_7, "counts client-7, and has no proof that it was there"),
        (renamed, "counts a, who is a client of honest"),
        (heavy, "they weigh 3, and those that were said to count 1000000000"),
        (twice, "names a client twice"),
        (another_round, "speaks of round"),
    ],
)
def test_forged_reports_do_not_count(change: Callable[[dict[str, Any]], object], why: str, top: str) -> None:
    with job(lying(in_round(change)), top=top) as made:
        there(made)
        for number in (1, 2):
            outcome = made.round(number)
            assert counted(outcome) == "ab"
            assert made.value() == expected("ab")
            assert why in reasons(outcome), outcome["participants"]


def without(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda true_answer: {name: value for name, value in true_answer.items() if name != key}


def saying(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda true_answer: {**true_answer, key: value}


@pytest.mark.parametrize(
    "change",
    [
        without("outcome"),
        without("zero"),
        without("held"),
        saying("outcome", "x"),
        saying("outcome", None),
        saying("zero", "1"),
        saying("zero", 10**30),
        saying("first", []),
        saying("clients", {"a": 1}),
        saying("departed", [["a"]]),
        saying("tree", {}),
        saying("notes", ["x"] * 2000),
        saying("notes", 7),
        saying("sums", "?"),
        saying("more", 1),
        lambda true_answer: true_answer["outcome"].update(participants=None),
        lambda true_answer: true_answer["outcome"]["participants"][0].update(samples=True),
        lambda true_answer: true_answer["outcome"]["participants"][0].update(state="king"),
        lambda true_answer: true_answer["outcome"]["participants"][0].update(client=["c"]),
        lambda true_answer: true_answer["outcome"]["transfers"][0].update(wire_bytes=-1),
        lambda true_answer: true_answer["outcome"]["transfers"][0].pop("receive_end"),
        lambda true_answer: true_answer["outcome"]["fold"].update(timeline={"did": [{}], "left_out": 0}),
        lambda _: [],
        lambda _: {},
    ],
)
def test_an_answer_of_another_form_loses_its_node_alone(change: Callable[[dict[str, Any]], object]) -> None:
    with job(lying(in_round(lambda true_answer: _replacement(change(true_answer))))) as made:
        there(made)
        outcome = made.round(1)
        assert counted(outcome) == "ab"
        assert made.value() == expected("ab")
        assert "its node liar was dropped: " in reasons(outcome), outcome["participants"]


def _replacement(result: object) -> object:
    """Return the result of a change if it replaces the answer, which a list or a dict does; else None."""
    return result if isinstance(result, (dict, list)) else None


@pytest.mark.parametrize(
    "said", [b"[" * 100_000, b'{"outcome":' * 90_000, b"1" * 5000, b"", b"\xff", b"7", b'{"zero": NaN}']
)
@pytest.mark.parametrize("asked", ["round", "wait", "homes"])
def test_an_answer_that_cannot_be_read_loses_its_node_alone(asked: str, said: bytes) -> None:
    def make(order: NodeOrder) -> Gateway:
        made = Raw(order, print)
        made.asked, made.said = asked, said
        return made

    with job(make) as made:
        while made.tree.wait(3, None) < 2:
            pass
        outcome = made.round(1)
        assert counted(outcome) == "ab"
        assert made.value() == expected("ab")
        assert "its node liar was dropped: its answer cannot be read" in reasons(outcome), outcome["participants"]


def test_tensors_that_nobody_asked_for_are_left_alone() -> None:
    with job(lying(lambda _, true_answer: true_answer, _core.Arena(layout()))) as made:
        there(made)
        assert counted(made.round(1)) == "abc"
        assert made.value() == expected("abc")


def test_a_node_takes_no_client_of_another_and_invents_none() -> None:
    """The run does not start the node. The node names clients that are connected to other nodes, or to none."""

    def lie(asked: str, true_answer: dict[str, Any]) -> dict[str, Any]:
        if asked in ("wait", "round"):
            true_answer["clients"] = [*true_answer["clients"], "a", "client-7"]
        return true_answer

    with job(lying(lie), come=True) as made:
        notes: list[str] = []
        while set(json.loads(made.tree.clients())) != {"a", "b", "c"} or not notes:
            made.tree.wait(3, None)
            notes += [note for note in made.tree.notes() if "has no proof" in note]
        at = {node.name: list(node.clients) for node in made.tree._nodes}
        assert at == HOMES
        outcome = made.round(1)
        assert counted(outcome) == "abc"
        assert made.value() == expected("abc")
        assert notes == ["liar names client-7, and has no proof that it is there: it does not count"]


@pytest.mark.parametrize("shown", ["", "?", base64.b64encode(b"\x00" * 300).decode()])
def test_a_proof_that_is_none_proves_nobody(shown: str) -> None:
    def lie(asked: str, true_answer: dict[str, Any]) -> dict[str, Any]:
        return {"proofs": {"c": shown}} if asked == "proofs" else true_answer

    with job(lying(lie), come=True) as made:
        notes: list[str] = []
        while set(json.loads(made.tree.clients())) != {"a", "b"} or not notes:
            made.tree.wait(3, None)
            notes += [note for note in made.tree.notes() if "has no proof" in note]
        assert notes == ["liar names c, and has no proof that it is there: it does not count"]
        outcome = made.round(1)
        assert counted(outcome) == "ab"
        assert made.value() == expected("ab")


def test_a_nodes_log_is_bounded_between_rounds() -> None:
    def lie(asked: str, true_answer: dict[str, Any]) -> dict[str, Any]:
        return {**true_answer, "notes": ["\x1b[2Jx"] * 1000} if asked == "wait" else true_answer

    with job(lying(lie)) as made:
        there(made)
        for _ in range(3):
            made.tree.wait(3, None)
        said = [note for note in made.tree.notes() if "liar" in note]
        assert len([note for note in said if note.startswith("liar: ") and "\x1b" not in note]) <= 64 + 4 + 1
        assert said.count("more of liar is left out until the next round") == 1
        assert counted(made.round(1)) == "abc"


def test_another_node_may_come_in_the_place_of_one_that_cannot_be_opened() -> None:
    """If a node sends an invalid answer when it opens, the job goes on with another node."""

    def make(order: NodeOrder) -> Gateway:
        made = Raw(order, print)
        made.asked, made.said = "open", b"[" * 100_000
        return made

    looked: list[str] = []

    def look() -> None:
        looked.extend(made.notes())
        if any("cannot be a node" in note for note in looked):
            raise KeyboardInterrupt

    own: CoreOptions = {"issuer": ISSUER, "job": JOB, "grace": 0.5, "transport": {}, "tree": True}
    options: Any = {"transport": {}, "workers": {"count": 1, "split": "ranges"}, "expected": 1}
    made = Tree(_core.Arena(layout()), URL, 1, options, own, top="dedicated")
    node = make(order(made.address, "liar"))

    def serve() -> None:
        with suppress(_core.CoreError):
            node.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            made.open(look)
        assert "liar cannot be a node: its answer cannot be read" in looked[-1]
        better = Gateway(replace(order(made.address, "honest"), clients=1), print)
        other = threading.Thread(target=better.serve)
        other.start()
        made.open(lambda: None)
        assert [node.name for node in made._nodes] == ["honest"]
    finally:
        made.close("over")
        thread.join(60)
    other.join(60)


@pytest.mark.parametrize(("role", "name"), [("client", "liar"), ("task-member", "liar"), ("client", "a")])
def test_only_a_token_of_a_node_joins_as_one(role: str, name: str) -> None:
    own: CoreOptions = {"issuer": ISSUER, "job": JOB, "transport": {}, "tree": True}
    with_tree = Tree(_core.Arena(layout()), URL, 1, {"transport": {}, "expected": 1}, own, top="dedicated")
    try:
        options = {"token": token(role, name), "tree": True, "timeout": 5.0}
        member = _core.TaskClient(with_tree.address, name, json.dumps(options))
        with pytest.raises(_core.CoreError, match=f"for the role {role}, but this server requires tree-node"):
            member.join()
        # The client is redirected to the node that it belongs to, as it should be.
        client = _core.Client(with_tree.address, name, json.dumps({"token": token(role, name)}), None)
        with pytest.raises(_core.CoreError, match="clients connect to a node"):
            client.join()
    finally:
        with_tree.close("over")


def test_the_name_of_a_connected_node_is_not_given_to_another_holder() -> None:
    own: CoreOptions = {"issuer": ISSUER, "job": JOB, "transport": {}, "tree": True}
    server = _core.TaskServer(URL, json.dumps(own))
    try:
        first = _core.TaskClient(
            server.address, "west", json.dumps({"token": token("tree-node", "west"), "tree": True})
        )
        first.join()
        for shown in (token("tree-node", "east"), token("client", "west"), "aa" * 32):
            options = {"token": shown, "tree": True, "timeout": 5.0}
            other = _core.TaskClient(server.address, "west", json.dumps(options))
            with pytest.raises(_core.CoreError, match=r"token of .west. is"):
                other.join()
        assert json.loads(server.clients()) == ["west"]
        first.close("done")
    finally:
        server.close("over")
