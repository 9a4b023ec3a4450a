"""From a bench plan to cells: every one is checked before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg.bench import BenchPlan, Matrix
from thalweg.errors import PlanError

BASE: dict[str, Any] = {"job": {"clients": 2, "rounds": 1}, "model": {"name": "payload:256KiB"}}


def matrix(axes: dict[str, Any], base: dict[str, Any] | None = None, **settings: Any) -> Matrix:
    table = {"base": BASE if base is None else base, "matrix": axes, **settings}
    return Matrix.of(BenchPlan.of(table))


def test_every_combination_is_a_plan() -> None:
    made = matrix({"transport": ["tcp", "memory"], "job.clients": [2, 3], "model": ["payload:1MiB"]})
    found = [
        (cell.plan.scheme, cell.plan.job.clients, cell.plan.model.name, cell.plan.job.rounds) for cell in made.cells
    ]
    assert found == [(way, count, "payload:1MiB", 1) for way in ("tcp", "memory") for count in (2, 3)]
    assert [cell.number for cell in made.cells] == [1, 2, 3, 4]
    assert made.cells[1].label == "transport tcp, model payload:1MiB, job.clients 3"
    assert made.axes == {"transport": ["tcp", "memory"], "model": ["payload:1MiB"], "job.clients": ["2", "3"]}


def test_a_plan_without_a_matrix_is_one_cell() -> None:
    (cell,) = matrix({}).cells
    assert cell.label == "the plan"


def test_keys_may_be_written_as_tables() -> None:
    plan = BenchPlan.loads("[matrix.job]\nclients = [1, 2]\n[matrix.layers.fault]\nloss = [0.0, 0.1]\n")
    made = Matrix.of(plan)
    assert list(made.axes) == ["job.clients", "layers.fault.loss"]
    faults = [cell.plan.layers.fault for cell in made.cells]
    assert [fault.loss for fault in faults if fault is not None] == [0.0, 0.1, 0.0, 0.1]


def test_networks_in_words_as_tables_and_none() -> None:
    axes = {"network": ["none", "wifi", "rate=5mbit", {"profile": "4g", "topology": "bottleneck"}]}
    networks = [cell.plan.network for cell in matrix(axes, {**BASE, "network": {"rtt": "10ms"}}).cells]
    assert networks[0] is None
    said = [(one.profile, one.rate, one.rtt, one.topology) for one in networks if one is not None]
    assert said == [("wifi", None, None, "star"), (None, 5_000_000, 0.01, "star"), ("4g", None, None, "bottleneck")]


def test_transports_with_options_of_their_own() -> None:
    made = matrix({"transport": ["tcp", "udp"]}, {**BASE, "transport": {"congestion": "reno"}}, impossible="skip")
    assert made.cells[0].plan.transport.congestion == "reno"
    with pytest.raises(PlanError, match=r"the transport 'tcp' has no option mode"):
        matrix({"transport": ["tcp,mode=unary"]})


def test_how_clients_are_served_and_how_long_they_compute() -> None:
    axes = {
        "fanout": ["concurrent", "sequential"],
        "gather": ["in-order"],
        "compute": ["2s", 0],
        "congestion": ["reno"],
    }
    found = [
        (one.fanout, one.gather, one.congestion, cell.plan.training.compute)
        for cell in matrix(axes).cells
        for one in [cell.plan.transport]
    ]
    ways = [(way, seconds) for way in ("concurrent", "sequential") for seconds in (2.0, 0.0)]
    assert sorted(found) == sorted((way, "in-order", "reno", seconds) for way, seconds in ways)


def test_loss_goes_over_the_network() -> None:
    made = matrix({"loss": [0, 0.00001, "5%"], "network": ["none", "wifi"]})
    found = [(one.profile, one.loss) for cell in made.cells if (one := cell.plan.network) is not None]
    assert sorted(found, key=str) == sorted(
        [(profile, loss) for profile in (None, "wifi") for loss in (0.0, 0.00001, 0.05)], key=str
    )


def test_stress_in_words_as_a_table_and_none() -> None:
    axes = {"stress": ["none", "cpu=99", "network=250mbit,parties=client-1+client-2", {"cpu_quota": 0.5}]}
    none, cpu, network, quota = (cell.plan.stress for cell in matrix(axes).cells)
    assert none is None
    assert cpu is not None
    assert cpu.cpu == 99.0
    assert network is not None
    assert (network.network, network.parties) == (250_000_000, ["client-1", "client-2"])
    assert quota is not None
    assert quota.cpu_quota == 0.5


@pytest.mark.parametrize(
    ("axes", "cause", "hint"),
    [
        ({"transprot": ["tcp"]}, "'transprot', which is no axis", "Did you mean 'transport'"),
        ({"job": [1]}, "'job', which is no axis", "job.clients"),
        ({"job.clients": 2}, "is not a list of values", "[VALUE, ...]"),
        ({"job.clients": []}, "is not a list of values", "[VALUE, ...]"),
        ({"job.clients": [2, 2]}, "has 2 twice", "once"),
        ({"model": ["vgg5"], "model.name": ["vgg8"]}, "has both model and model.name", "one"),
        ({"record.folder": ["a"]}, "records go to the bench's folder", "Remove"),
        ({"job.runds": [1]}, "cell 1 (job.runds 1) cannot be: its plan: unknown key 'runds'", "rounds"),
        ({"job.clients": [0]}, "cell 1 (job.clients 0) cannot be", "impossible = 'skip'"),
        ({"transport": ["tcp", "tpc"]}, "cell 2 (transport tpc) cannot be: unknown transport 'tpc'", "tcp"),
        ({"transport": ["memory"], "network": ["wifi"]}, "stays within one process", "Remove [network]"),
        ({"transport": [3]}, "a transport cannot be 3", "grpc,mode=unary"),
        ({"transport": ["tcp,fast"]}, "'fast' is no option of a transport", "KEY=VALUE"),
        ({"network": [3]}, "a network cannot be 3", "none"),
        ({"loss": [True]}, "a loss cannot be True", "1%"),
        ({"stress": ["cpu"]}, "the stress 'cpu' has 'cpu'", "KEY=VALUE"),
        ({"job.clients": list(range(1, 1002)), "job.rounds": list(range(1, 11))}, "10010 cells", "Split"),
    ],
)
def test_what_is_refused(axes: dict[str, Any], cause: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        matrix(axes)
    assert cause in caught.value.cause
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("repetitions = 0", "repetitions is 0, not at least 1"),
        ("repetition = 2", "unknown key 'repetition'"),
        ('accounting = "fair"', "accounting is 'fair'"),
        ("limit = 0.0", "limit is 0.0, not more than 0"),
        ('[base.record]\nfolder = "here"', "[base.record] has folder"),
    ],
)
def test_wrong_settings_are_named(text: str, cause: str) -> None:
    with pytest.raises(PlanError) as caught:
        Matrix.of(BenchPlan.loads(text))
    assert cause in caught.value.cause


def test_impossible_cells_are_skipped_with_their_reason() -> None:
    made = matrix({"transport": ["tcp", "memory"], "network": ["none", "wifi"]}, impossible="skip")
    assert [cell.number for cell in made.cells] == [1, 2, 3]
    (one,) = made.skipped
    assert (one.number, one.settings) == (4, {"transport": "memory", "network": "wifi"})
    assert "stays within one process" in one.reason


def test_a_matrix_of_nothing_but_impossible_cells_is_refused() -> None:
    with pytest.raises(PlanError, match="none of its 1 cells can be"):
        matrix({"job.runds": [1]}, impossible="skip")


def test_runs_take_turns_in_an_order_of_the_seed() -> None:
    axes = {"job.rounds": list(range(1, 9))}

    def order(**settings: Any) -> list[tuple[int, int]]:
        return [(repetition, cell.number) for repetition, cell in matrix(axes, **settings).runs()]

    first = order(repetitions=2, seed=5)
    assert [repetition for repetition, _ in first] == [1] * 8 + [2] * 8
    turns = [[number for _, number in first[:8]], [number for _, number in first[8:]]]
    assert [sorted(turn) for turn in turns] == [list(range(1, 9))] * 2
    assert turns[0] != turns[1]
    assert order(repetitions=2, seed=5) == first
    assert order(repetitions=2, seed=6) != first
    assert order(repetitions=3, seed=5)[:16] == first, "more repetitions do not change the earlier ones"


def test_seeds_are_the_same_for_all_cells_of_a_repetition() -> None:
    made = matrix({"transport": ["tcp", "memory"]}, {**BASE, "job": {"seed": 7}})
    plans = [[cell.in_repetition(number, "there") for cell in made.cells] for number in (1, 2)]
    assert [[plan.job.seed for plan in turn] for turn in plans] == [[7, 7], [8, 8]]
    assert plans[0][0].record.folder == "there"


def test_a_bench_plan_is_written_as_it_was_read() -> None:
    axes = {"stress": ["none", {"cpu": 99}], "job.clients": [1, 2]}
    plan = BenchPlan.of({"base": BASE, "matrix": axes, "repetitions": 4})
    assert BenchPlan.loads(plan.to_toml()) == plan
    assert plan.with_repetitions(9).repetitions == 9
    assert plan.with_repetitions(None) is plan


def test_a_case_goes_over_several_sections_and_has_a_name() -> None:
    case = {"name": "slow start", "transport": {"url": "tcp", "congestion": "reno"}, "loss": "1%"}
    other = {"name": "plain", "transport": {"url": "tcp"}}
    made = Matrix.of(
        BenchPlan.of(
            {
                "base": {"model": {"name": "payload:1KiB"}, "transport": {"streams": 2}},
                "matrix": {"case": [case, other], "network": [{"name": "far", "is": "rtt=40ms"}]},
            }
        )
    )
    assert made.axes == {"case": ["slow start", "plain"], "network": ["far"]}
    first, second = (cell.plan for cell in made.cells)
    assert (first.transport.congestion, first.transport.streams, second.transport.congestion) == ("reno", 2, None)
    assert first.network is not None
    assert first.network.model_dump(exclude_none=True)["loss"] == 0.01


def test_a_case_is_a_table() -> None:
    with pytest.raises(PlanError, match="a table of a plan's sections"):
        Matrix.of(BenchPlan.of({"matrix": {"case": ["tcp"]}}))
