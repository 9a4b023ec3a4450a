"""DiLoCo with fragments, overlap and outer steps at the peers: as the papers say, at a server and on a graph."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import thalweg
from tests.ports import free_ports
from thalweg.algorithms.diloco import Fragments, OuterSteps
from thalweg.algorithms.torch_rule import TorchRule
from thalweg.errors import LinkError, PlanError, RoundError
from thalweg.job.common.parties import server_party
from thalweg.job.diloco.exchanges import FRAGMENT, Exchanged, NeighbourMean, RunningExchange, arena_for, is_usable
from thalweg.peers import _FragmentExchanges
from thalweg.tensors.binding import bind

ROOT = Path(__file__).parents[2]
# Far more than anything takes: a busy machine may need a minute to start a process that imports PyTorch.
LIMIT = 300.0
WIDTH = 5
EVERY, FRAGMENTS = 4, 2


def outer(tensors: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(tensors, lr=0.7, momentum=0.9, nesterov=True)


def layer(seed: int = 5) -> nn.Module:
    """Return a layer whose values follow from ``seed`` alone, also in threads, which share PyTorch's random state."""
    model = nn.Linear(WIDTH, 3, dtype=torch.float64)
    put(model, np.random.default_rng(seed).normal(0.0, 0.3, flat(model).size))
    return model


def trained(model: nn.Module, inner: torch.optim.Optimizer, peer: int, step: int) -> None:
    """Take a step of a plain loop."""
    generator = torch.Generator().manual_seed(1000 * peer + step)
    inputs = torch.randn(8, WIDTH, dtype=torch.float64, generator=generator)
    inner.zero_grad()
    torch.autograd.backward((model(inputs) - inputs.sum(dim=1, keepdim=True) - peer).square().mean())
    inner.step()


def flat(model: nn.Module) -> np.ndarray[Any, Any]:
    return np.concatenate([one.detach().numpy().reshape(-1) for one in model.parameters()])


def inner_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def put(model: nn.Module, values: np.ndarray[Any, Any]) -> None:
    at = 0
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(torch.from_numpy(values[at : at + one.numel()]).view_as(one))
            at += one.numel()


def reference(peers: list[int], steps: int, *, first: int, fragments: int, overlap: int, keep: float) -> Any:
    """Algorithm 2 of the paper in plain NumPy; ``first`` is the number of the first exchange after training began."""
    models = {one: layer() for one in peers}
    inners = {one: inner_of(model) for one, model in models.items()}
    start, momentum = flat(layer()), np.zeros_like(flat(layer()))
    size = -(-start.size // fragments)
    between, exchange = EVERY // fragments, first
    pending: tuple[int, slice, np.ndarray[Any, Any]] | None = None
    for step in range(1, steps + 1):
        for one, model in models.items():
            trained(model, inners[one], one, step - 1)
        due = pending if pending is not None and step - pending[0] >= overlap else None
        if step % between == 0:
            part = slice(((exchange - 1) % fragments) * size, ((exchange - 1) % fragments + 1) * size)
            exchange += 1
            mean = np.mean([flat(model)[part] for model in models.values()], axis=0)
            new = (step, part, mean)
            due = due or (new if overlap == 0 else None)
        else:
            new = pending  # type: ignore[assignment]
        if due is not None:
            _, part, mean = due
            gradient = start[part] - mean
            momentum[part] = 0.9 * momentum[part] + gradient
            start[part] -= 0.7 * (gradient + 0.9 * momentum[part])
            for model in models.values():
                values = flat(model)
                values[part] = (keep if overlap else 0) * values[part] + (1 - (keep if overlap else 0)) * start[part]
                put(model, values)
            if due is new:
                new = None  # type: ignore[assignment]
        pending = new if step % between == 0 or due is None else None
    return {one: flat(model) for one, model in models.items()}


def together(work: Callable[[int], None], peers: list[int]) -> None:
    """Run a thread for each peer, and raise what the first of them raises."""
    errors: list[BaseException] = []

    def guarded(one: int) -> None:
        try:
            work(one)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(one,), daemon=True) for one in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    if errors:
        raise errors[0]


def addresses(count: int) -> dict[str, str]:
    return {f"peer-{one}": f"tcp://127.0.0.1:{port}" for one, port in enumerate(free_ports(count))}


def among(urls: dict[str, str], one: int) -> dict[str, Any]:
    """Return the arguments of a peer of a full graph."""
    own = f"peer-{one}"
    neighbours = {name: url for name, url in urls.items() if name != own}
    return {"name": own, "listen": urls[own], "neighbours": neighbours, "timeout": LIMIT}


@pytest.mark.parametrize(("fragments", "overlap"), [(1, 0), (2, 0), (2, 1), (2, 2)])
def test_without_a_server_the_steps_are_those_of_the_paper(fragments: int, overlap: int) -> None:
    urls, found, steps = addresses(3), dict[int, np.ndarray[Any, Any]](), 4 * EVERY

    def work(one: int) -> None:
        model = layer()
        inner = inner_of(model)
        settings: dict[str, Any] = {"every": EVERY, "fragments": fragments, "overlap": overlap, "keep": 0.25}
        with thalweg.diloco(model, inner, outer, **settings, **among(urls, one)) as peer:
            for step in range(steps):
                trained(model, inner, one, step)
            found[one] = flat(model)
        assert {entry["status"] for entry in peer.rounds} == {"accepted"}

    together(work, [0, 1, 2])
    # The first exchange, before any step, is that of the values that all begin with.
    expected = reference([0, 1, 2], steps, first=2, fragments=fragments, overlap=overlap, keep=0.25)
    for one, values in expected.items():
        np.testing.assert_allclose(found[one], values, rtol=1e-9)


def test_a_server_gives_the_mean_and_peers_take_the_steps() -> None:
    found: dict[int, np.ndarray[Any, Any]] = {}
    app = thalweg.FragmentApp(layer, fragments=FRAGMENTS)
    with thalweg.Server(app, clients=2) as server:
        url = server.address

        def work(one: int) -> None:
            model = layer()
            inner = inner_of(model)
            settings: dict[str, Any] = {"every": EVERY, "fragments": FRAGMENTS, "overlap": 1, "keep": 0.5}
            with thalweg.diloco(model, inner, outer, server=url, name=f"peer-{one}", **settings) as peer:
                for step in range(13):  # the fragment sent after step 12 comes after step 13
                    peer.metrics = {"loss": 1.0}
                    trained(model, inner, one, step)
                found[one] = flat(model)
                while not peer.over:
                    trained(model, inner, one, 0)

        rounds: list[Any] = []

        def serve() -> None:
            rounds.extend(thalweg.rounds(server, 8))
            server.close()

        ends = threading.Thread(target=serve, daemon=True)
        ends.start()
        together(work, [1, 2])
        ends.join(LIMIT)
    assert [sorted(done.participants) for done in rounds] == [["peer-1", "peer-2"]] * 8
    expected = reference([1, 2], 13, first=1, fragments=FRAGMENTS, overlap=1, keep=0.5)
    for one, values in expected.items():
        np.testing.assert_allclose(found[one], values, rtol=1e-9)


def test_a_newcomer_at_a_server_takes_the_values_first() -> None:
    settings: dict[str, Any] = {"every": EVERY, "fragments": FRAGMENTS}
    mean = lambda tensors: torch.optim.SGD(tensors, lr=1.0)  # noqa: E731 - the outer step goes to the mean
    found: list[np.ndarray[Any, Any]] = []
    came = threading.Event()
    with thalweg.Server(thalweg.FragmentApp(layer, fragments=FRAGMENTS), clients=2, enough=1) as server:

        def take_part(name: str, steps: int | None) -> None:
            model = layer()
            inner = torch.optim.SGD(model.parameters(), lr=0.0)
            with thalweg.diloco(model, inner, mean, name=name, server=server.address, **settings) as peer:
                put(model, flat(model) + 1)  # what it has learnt
                while not peer.over and (steps is None or peer.steps < steps):
                    trained(model, inner, 1, 0)

        def come() -> None:
            model = layer(seed=9)  # what it begins with counts for nothing
            inner = inner_of(model)
            with thalweg.diloco(model, inner, mean, name="coming", server=server.address, **settings):
                found.append(flat(model))
            came.set()

        both = [
            threading.Thread(target=take_part, args=one, daemon=True) for one in (("staying", None), ("leaving", 9))
        ]
        for thread in both:
            thread.start()
        seen = thalweg.rounds(server, 10_000)
        while next(seen).participants != ["staying"]:
            pass
        coming = threading.Thread(target=come, daemon=True)
        coming.start()
        while not came.is_set():
            next(seen)
        server.close()
        for thread in (*both, coming):
            thread.join(LIMIT)
    np.testing.assert_allclose(found[0], flat(layer()) + 1, rtol=1e-6)


KILLED = """
import os, signal, sys, torch, thalweg
from tests.algorithms.test_streaming_diloco import inner_of, layer, outer, trained
one, own, others = int(sys.argv[1]), sys.argv[2], dict(word.split("=") for word in sys.argv[3:])
model = layer()
inner = inner_of(model)
settings = {"every": 4, "fragments": 2, "overlap": 1, "timeout": 300}
with thalweg.diloco(model, inner, outer, name=f"peer-{one}", listen=own, neighbours=others, **settings) as peer:
    for step in range(5):
        trained(model, inner, one, step)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_peer_is_killed_and_a_newcomer_takes_its_place() -> None:
    """Two peers go on without the third, whose process is killed between two exchanges, and take in a fourth."""
    urls = addresses(4)
    own = urls["peer-2"]
    others = [f"{name}={urls[name]}" for name in ("peer-0", "peer-1")]
    process = subprocess.Popen([sys.executable, "-c", KILLED, "2", own, *others])
    steps, found = 40, dict[int, np.ndarray[Any, Any]]()
    alone = threading.Event()

    def work(one: int) -> None:
        model = layer(seed=9) if one == 3 else layer()
        inner = inner_of(model)
        settings: dict[str, Any] = {"every": EVERY, "fragments": FRAGMENTS, "overlap": 1, "enough": 2}
        if one == 3:
            alone.wait(LIMIT)
        with thalweg.diloco(model, inner, outer, **settings, **among(urls, one)) as peer:
            if one < 2:
                while not (peer.steps >= steps and "peer-3" in peer.connected):
                    trained(model, inner, one, peer.steps)
                    if "peer-2" not in peer.connected and peer.steps >= steps:
                        alone.set()
                for step in range(2 * EVERY):
                    trained(model, inner, one, step)
            else:
                assert np.linalg.norm(flat(model) - flat(layer(seed=9))) > 0.1
                for step in range(EVERY):
                    trained(model, inner, one, step)
            found[one] = flat(model)

    together(work, [0, 1, 3])
    assert process.wait(LIMIT) == -9
    assert set(found) == {0, 1, 3}
    assert np.linalg.norm(found[0] - found[3]) < 0.5 * np.linalg.norm(found[0])


class TreeApp(thalweg.FragmentApp):
    """The app of the tree's server, which finds it by this file's name."""

    def __init__(self) -> None:
        super().__init__(layer, fragments=FRAGMENTS)


PLAN = """
[job]
clients = 2
rounds = 6

[app]
object = "tests.algorithms.test_streaming_diloco:TreeApp"

[aggregation]
shape = "tree"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a tree's workers need Linux")
def test_workers_of_a_tree_fold_fragments(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    (port,) = free_ports(1)
    url = f"tcp://127.0.0.1:{port}"
    words = [
        "-m",
        "thalweg",
        "server",
        str(tmp_path / "plan.toml"),
        "--listen",
        url,
        "--record",
        str(tmp_path / "made"),
    ]
    server = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.DEVNULL)
    found: dict[int, np.ndarray[Any, Any]] = {}

    def work(one: int) -> None:
        model = layer()
        inner = inner_of(model)
        settings: dict[str, Any] = {"every": EVERY, "fragments": FRAGMENTS, "server": url, "timeout": LIMIT}
        with thalweg.diloco(model, inner, outer, name=f"client-{one}", **settings) as peer:
            while not peer.over:
                trained(model, inner, one, peer.steps)
                # The mean of the last round is nobody's any more.
                if len(peer.rounds) == 5 and one not in found:
                    found[one] = flat(model)

    together(work, [1, 2])
    assert server.wait(LIMIT) == 0
    expected = reference([1, 2], 10, first=1, fragments=FRAGMENTS, overlap=0, keep=0)
    for one, values in expected.items():
        np.testing.assert_allclose(found[one], values, rtol=1e-9)


def test_peers_that_begin_with_different_values_are_told() -> None:
    urls = addresses(2)

    def work(one: int) -> None:
        model = layer(seed=one)
        thalweg.diloco(model, inner_of(model), outer, every=1, **among(urls, one))

    with pytest.raises(RoundError, match="begin with different values"):
        together(work, [0, 1])


def test_a_peer_without_neighbours_says_who_is_missing() -> None:
    urls = addresses(2)
    model = layer()
    with pytest.raises(LinkError, match=r"0 of 1 neighbours .* peer-1 are not"):
        thalweg.diloco(model, inner_of(model), outer, every=1, **{**among(urls, 0), "timeout": 0.1})


class Scripted:
    """An exchange with peers that have begun before; what it brings is a list."""

    over, is_new, traffic = False, True, (0, 0)

    def __init__(self, brings: list[Exchanged]) -> None:
        self.brings, self.number, self.shares, self.closed = brings, 1, list[list[bool]](), False

    def join(self, steps: OuterSteps) -> Exchanged | None:
        return self.run()

    def give(self, steps: OuterSteps, metrics: str) -> None:
        self.shares.append(list(steps.ready))

    def run(self) -> Exchanged:
        self.number += 1
        return self.brings.pop(0)

    def close(self, reason: str) -> None:
        self.closed = True


def test_a_newcomer_that_gets_too_little_of_a_fragment_waits_for_it_again() -> None:
    bound = bind(layer(seed=9))
    cut = Fragments(bound.arena, bound.trained, FRAGMENTS)
    wanted = flat(layer())
    places = []
    for fragment in range(FRAGMENTS):
        begin, end = cut.bounds(fragment)
        places.append(np.zeros(cut.length, cut.dtype))
        places[-1][: end - begin] = wanted[begin:end]
        places[-1][-1] = 1
    # The first fragment does not come the first time.
    brings = [Exchanged(1, 0, None, "accepted"), Exchanged(2, 1, places[1], "accepted")]
    exchange = Scripted([*brings, Exchanged(3, 0, places[0], "accepted")])
    bound.collect("the model was made")
    steps = OuterSteps(cut, lambda values: TorchRule(values, outer))
    _FragmentExchanges(bound, steps, exchange, between=2, overlap=0, keep=0.0).begin()
    np.testing.assert_array_equal(flat(bound.model), wanted)
    assert exchange.shares == [[False, False], [False, True]], "it counts only where it has the others' values"


def test_the_share_makes_no_value_beside_it_coarse() -> None:
    model = nn.Linear(WIDTH, 3)
    values = np.random.default_rng(1).normal(0.0, 1e-3, flat(model).size).astype(np.float32)
    put(model, values)
    bound = bind(model)
    cut = Fragments(bound.arena, bound.trained, 1)
    steps = OuterSteps(cut, lambda tensors: TorchRule(tensors, outer))
    room = arena_for(cut, 1)
    steps.fill(0, room[FRAGMENT])
    room.core.compress("int8")
    mean = steps.mean_of(0, room[FRAGMENT])
    assert mean is not None
    assert np.abs(mean - values).max() <= np.abs(values).max() / 64
    assert np.abs(mean - values).max() > 0, "they were rounded"


def test_a_mean_is_used_if_it_is_one() -> None:
    usable = partial(is_usable, 1.0, is_fresh=False, is_torn=False, is_whole=True, is_alone=False)
    assert usable()
    assert usable(is_torn=True), "all that came is of peers that have values"
    assert usable(is_whole=False), "nothing came in time: its own values are the mean"
    assert not usable(is_fresh=True, is_whole=False), "the newcomer's own values are not the others'"
    assert usable(is_fresh=True, is_whole=False, is_alone=True), "there are no others"
    torn = partial(is_usable, is_fresh=False, is_torn=True, is_whole=True, is_alone=False)
    assert not torn(0.5)
    assert not torn(0.0)


def test_a_peer_leaves_also_after_an_exchange_that_failed() -> None:
    bound = bind(layer())
    steps = OuterSteps(Fragments(bound.arena, bound.trained, 1), lambda values: TorchRule(values, outer))
    exchange = NeighbourMean(steps.fragments, "alone", "tcp://127.0.0.1:0", {})
    streaming = _FragmentExchanges(bound, steps, exchange, between=1, overlap=1, keep=0.5)
    failing = Scripted([])  # it has nothing to bring: IndexError
    streaming._running = RunningExchange(failing, 1)
    with pytest.raises(IndexError):
        streaming.close("the peer ends")
    assert exchange.over


def test_a_server_of_fragments_counts_no_late_updates() -> None:
    with pytest.raises(PlanError, match="in the round of another fragment"):
        thalweg.Server(thalweg.FragmentApp(layer, fragments=FRAGMENTS), clients=2, stale=1)
    with thalweg.Server(thalweg.FragmentApp(layer), clients=2, stale=1):
        pass


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"partial": "keep"}, "a part of one cannot count"), ({"compression": "int8"}, "is another fragment")],
)
def test_a_server_of_fragments_counts_only_whole_values(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        thalweg.Server(thalweg.FragmentApp(layer, fragments=FRAGMENTS), clients=2, **settings)


def test_a_plan_with_fragments_lets_nothing_be_lost() -> None:
    plan = thalweg.Plan.of(
        {
            "app": "tests.algorithms.test_streaming_diloco:TreeApp",
            "transport": {"url": "udp://127.0.0.1:0"},
            "repair": {"resend": False},
            "job": {"clients": 2},
        },
        "the test's plan",
    )
    with pytest.raises(PlanError, match=r"repair\.resend"):
        server_party(plan)


def test_what_does_not_go_together_is_refused() -> None:
    model = layer()
    inner = inner_of(model)
    url = "tcp://127.0.0.1:9"
    for settings, words in [
        ({"every": 4, "fragments": 3, "server": url}, "4 steps cannot be divided evenly among 3 fragments"),
        ({"every": 4, "fragments": 2, "overlap": 3, "server": url}, "overlap is 3"),
        ({"every": 4, "keep": 1.0, "server": url}, "keep is 1.0"),
        ({"every": 4}, "needs the peers' mean"),
        ({"every": 4, "server": url, "neighbours": {"b": url}}, "needs the peers' mean"),
        ({"every": 4, "server": url, "compress": "int8"}, "compress has no effect with a server"),
        ({"every": 4, "server": url, "enough": 1, "listen": url}, "enough, listen have no effect with a server"),
        ({"every": 4, "server": url, "wait": "deadline"}, "wait has no effect with a server"),
        ({"every": 4, "neighbours": {"b": url}, "token_file": "a.token"}, "token_file has no effect among neighbours"),
    ]:
        with pytest.raises(PlanError, match=words):
            thalweg.diloco(model, inner, outer, name="a", **settings)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="for peers that take the outer step themselves"):
        thalweg.diloco(model, inner, url, name="a", every=4, fragments=2)
    with pytest.raises(PlanError, match="ca has no effect with a server"):
        thalweg.diloco(model, inner, url, name="a", every=4, ca="ca.crt")
