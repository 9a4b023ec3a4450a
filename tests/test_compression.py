"""Error feedback over a real link: what a coarse compression leaves out is sent later."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg
from thalweg.errors import PlanError
from thalweg.plan import Plan, check_transport
from thalweg.transports import registry

SMALL = np.float32(0.05)
VALUES = 256


class Uneven:
    """One value that jumps by 1 in each round, among others that creep towards SMALL.

    A block's scale follows the value that jumps, so 2 bits round all others to 0.
    """

    def model(self) -> dict[str, Any]:
        return {"w": np.zeros(VALUES, dtype=np.float32)}

    def train(self, model: Any, data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        model["w"][0] += 1 if config["round"] % 2 else -1
        model["w"][1:] += 0.1 * (SMALL - model["w"][1:])
        return 1, {}


def trained(rounds: int, compression: str | None, residual: Path | None = None) -> Any:
    """Return the model after so many rounds with one client."""
    with thalweg.Server(Uneven(), clients=1, compression=compression) as server:
        client = thalweg.Client(
            Uneven(), server.address, name="one", data=(), compression=compression, residual=residual
        )
        thread = threading.Thread(target=client.run, daemon=True)
        thread.start()
        for _ in thalweg.fedavg(server, rounds):
            pass
        values = server.model["w"].copy()
    thread.join()
    return values


def ternary(change: Any) -> Any:
    """Round as 2 bits do (Li and Liu 2016), and forget what is left out."""
    magnitudes = np.abs(change)
    kept = magnitudes > 0.7 * magnitudes.mean()
    return np.where(kept, np.sign(change) * (magnitudes[kept].mean() if kept.any() else 0), 0)


def test_error_feedback_converges_where_plain_rounding_does_not() -> None:
    plain, app = {"w": np.zeros(VALUES, dtype=np.float32)}, Uneven()
    for number in range(1, 81):
        before = plain["w"].copy()
        app.train(plain, (), {"round": number})
        plain["w"] = before + ternary(plain["w"] - before)
    assert np.abs(plain["w"][1:]).max() == 0  # nothing of the small values was ever sent
    found = trained(80, "int2")
    assert np.abs(found[1:].mean() - SMALL) < 0.2 * SMALL


@pytest.mark.parametrize(("compression", "step"), [("int8", 1 / 127), ("int4", 1 / 7)])
def test_what_is_still_to_be_sent_is_less_than_a_step(compression: str, step: float) -> None:
    # The largest change of a round is about 1, and all steps of its block are a fraction of it.
    exact, found = trained(60, None), trained(60, compression)
    assert np.abs(found - exact)[1:].max() < 1.2 * step


def test_a_client_that_starts_anew_goes_on_with_its_residual(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "one.residual"
    trained(3, "int2", file)
    first = file.read_bytes()
    assert len(first) > 4 * VALUES
    trained(3, "int2", file)
    assert file.read_bytes() != first
    with pytest.raises(thalweg.CoreError, match="delete it to begin without"):
        damaged(file)


def damaged(file: Path) -> None:
    """Run a client whose residual is cut."""
    file.write_bytes(file.read_bytes()[:-4])
    with thalweg.Server(Uneven(), clients=1, compression="int2") as server:
        client = thalweg.Client(Uneven(), server.address, name="one", data=(), compression="int2", residual=file)

        def serve() -> None:
            # The round fails, since the client ends.
            with suppress(thalweg.CoreError):
                list(thalweg.fedavg(server, 1))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        client.run()


def both_ways(
    folder: Path, rounds: int, *, resume: bool = False, record: str = "record", momentum: bool = False
) -> Any:
    """Run so many rounds that compress both ways; return the server's model and the clients' model."""
    algorithm: str | dict[str, float | bool | str] = "fedavg"
    if momentum:
        algorithm = {"name": "fedavgm", "server_momentum": 0.5}
    with thalweg.Server(
        Uneven(),
        clients=1,
        compression="int8",
        compression_down="int2",
        record=None if resume else folder / record,
        resume=next((folder / record).iterdir()) if resume else None,
    ) as server:
        client = thalweg.Client(
            Uneven(),
            server.address,
            name="one",
            data=(),
            compression="int8",
            compression_down="int2",
            residual=folder / f"{record}.residual",
        )
        thread = threading.Thread(target=client.run, daemon=True)
        thread.start()
        for _ in thalweg.rounds(server, rounds, algorithm=algorithm):
            pass
        held = server._core.held
        assert held is not None
        values = server.model["w"].copy(), np.asarray(held)[: 4 * VALUES].view(np.float32).copy()
    thread.join()
    return values


def test_the_way_down_sends_later_what_it_leaves_out(tmp_path: Path) -> None:
    model, held = both_ways(tmp_path, 80)
    # 2 bits round each change of the small values to 0 for a while.
    assert abs(model[1:].mean() - SMALL) < 0.2 * SMALL
    assert abs(held[1:].mean() - SMALL) < 0.2 * SMALL
    assert (model != held).any()


@pytest.mark.parametrize("momentum", [False, True])
def test_a_resumed_server_goes_on_with_the_model_that_clients_had(tmp_path: Path, momentum: bool) -> None:
    whole = both_ways(tmp_path, 9, record="whole", momentum=momentum)
    both_ways(tmp_path, 4, record="part", momentum=momentum)
    part = both_ways(tmp_path, 5, resume=True, record="part", momentum=momentum)
    for one, other in zip(whole, part, strict=True):
        np.testing.assert_array_equal(one, other)


def test_ends_that_do_not_agree_are_told_so() -> None:
    with thalweg.Server(Uneven(), clients=1, compression="int8") as server:
        client = thalweg.Client(Uneven(), server.address, name="one", data=(), compression="int4", timeout=2)
        with pytest.raises(thalweg.CoreError):
            client.run()
        assert server.wait(1, timeout=0) == 0


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[compression]\nscheme = 'int3'", "int8, int4, int2, topk:F"),
        ("[compression]\nscheme = 'topk:0'", "int8, int4, int2, topk:F"),
        ("[compression]\nscheme = 'topk:1e-3'", "int8, int4, int2, topk:F"),
        ("[compression]\nscheme = 'int8'\n[layers.compress]", "both compress updates"),
        ("[compression]\nscheme = 'int8'\n[repair]\nresend = false\nspread = true", "scatters neighbouring values"),
        (
            "[compression]\nscheme = 'int8'\n[repair]\nresend = false\npolicy = 'zero'",
            "replaces lost values by those of a model",
        ),
        ("[compression]\nscheme = 'int8'\n[repair]\nresend = false\npolicy = 'rescale'", "the next update has"),
        ("[compression]\nscheme = 'int8'\n[job]\ngoal = 2\n[aggregation]\nstale = 2", "a late update is sent again"),
        (
            "[compression]\nscheme = 'int8'\n[transport]\nurl = 'unifl'",
            "a compressed chunk cannot be decoded behind a hole",
        ),
        ("[compression]\nscheme = 'int8'\n[job]\ngraph = 'ring'", "sends later what rounding leaves out"),
        ("[compression]\nscheme = 'powersgd:2'\n[transport]\nurl = 'ltp'", "no room for the factors"),
        ("[compression]\nscheme = 'powersgd:0'", "rank R of matrices from 1 to 64"),
        ("[compression]\nscheme = 'powersgd:65'", "rank R of matrices from 1 to 64"),
        ("[compression]\nscheme = 'int8'\ndown = 'powersgd:2'", "the mean of many, whose rank is higher"),
        ("[compression]\ndown = 'int8'", "clients send whole models"),
        ("[compression]\nscheme = 'int8'\ndown = 'int3'", r"int8, int4, int2 or topk:F.*topk:0\.01(?!, or powersgd)"),
        ("[compression]\nscheme = 'int8'\ndown = 'int8'\n[repair]\nresend = false", "out of step"),
        (
            "[compression]\nscheme = 'int8'\ndown = 'int8'\n[aggregation]\nshape = 'tree'\n[nodes]\ncount = 2",
            "each node would round a model of its own",
        ),
    ],
)
def test_what_cannot_be_compressed_is_refused_with_the_reason(text: str, match: str) -> None:
    with pytest.raises(PlanError, match=match):
        check_transport(Plan.loads(text), registry.transports())
