"""Advice from generated records, in which every number is known. There a larger round number means a longer round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.bench.cells import Fake, Quiet, bench
from tests.report.records import make
from thalweg.advise import Question, bench_plan
from thalweg.advise import advise as answer
from thalweg.advise.condition import condition_of, differences, distance
from thalweg.advise.evidence import groups
from thalweg.bench import Matrix
from thalweg.bench.plan import BenchPlan
from thalweg.bench.process import Failure
from thalweg.bench.systems import System
from thalweg.cli import app
from thalweg.errors import ModelError, PlanError, RecordError
from thalweg.plan import Plan
from thalweg.ui import strict_json
from thalweg.ui.comparing import fewest_to_prove, pairs_of

MB = {"name": "payload:1MB"}
WIFI = {"profile": "wifi"}
FAST, SLOW = 2, 6
ENDED = {"ended": "2026-01-01T12:00:10.000+00:00"}


def advise(question: Question, records: list[Path]) -> dict[str, Any]:
    """Return the advice as ``--json`` prints it."""
    printed: dict[str, Any] = json.loads(strict_json.dumps(answer(question, records)))
    return printed


def record(folder: Path, name: str, congestion: str, rounds: int, network: Any = WIFI, **given: Any) -> None:
    """Write a run whose communication takes 0.1 (rounds + 1) seconds in the median."""
    plan = {"model": MB, "transport": {"url": "tcp", "congestion": congestion}, "network": network, **given}
    plan = {key: value for key, value in plan.items() if value is not None}
    make(folder / name, rounds=rounds, plan=plan, train=None, manifest=ENDED)


@pytest.fixture
def wifi(tmp_path: Path) -> Path:
    """Three runs each of two ways over one network, the first twice as fast."""
    for number in range(3):
        record(tmp_path, f"a{number}", "cubic", FAST)
        record(tmp_path, f"b{number}", "reno", SLOW)
    return tmp_path


def test_what_was_measured_is_answered(wifi: Path) -> None:
    advice = advise(Question("wifi", "payload:1MB"), [wifi])
    assert (advice["records"], advice["left_out"], advice["nearest"]["distance"]) == (6, {}, 0)
    answer = advice["answers"]["fastest"]
    assert (answer["transport"], answer["next"]) == ("tcp cubic", "tcp reno")
    assert (answer["value"], answer["next_value"]) == pytest.approx((0.3, 0.7))
    assert answer["factor"] == pytest.approx(7 / 3)
    assert answer["chance"] == pytest.approx(2 / 20), "two of the ways to deal six runs out to two"
    assert (answer["sure"], answer["needed"]) == ("fairly", 4)
    assert (answer["low"], answer["high"]) == pytest.approx((7 / 3, 7 / 3)), "runs without any spread"
    transports = {row["transport"]: row for row in advice["nearest"]["transports"]}
    assert transports["tcp cubic"]["runs"] == 3
    assert transports["tcp cubic"]["cpu_seconds"]["median"] == pytest.approx(3 * 1.25 / FAST)
    assert advice["answers"]["least_cpu"]["transport"] == "tcp reno", "as much in more rounds"
    memory = advice["answers"]["least_memory"]
    assert "they differ by no more than 2 %" in memory["why"]
    assert (memory["relation"], memory["sure"]) == ("alike", "fairly")
    assert advice["unconstrained"] is None
    assert advice["cost"]["again"] == {"runs": 2, "seconds": pytest.approx(20)}
    assert advice["cost"]["as_asked"]["seconds"] > 0


def test_the_nearest_condition_is_taken_and_named(wifi: Path) -> None:
    record(wifi, "far", "cubic", FAST, {"rate": "1gbit"})
    record(wifi, "far2", "reno", SLOW, {"rate": "1gbit"})
    advice = advise(Question("rate=45mbit", "payload:2MB"), [wifi])
    assert advice["nearest"]["distance"] > 1
    words = "; ".join(advice["nearest"]["differences"])
    assert "rate up: 60.0 Mbit/s measured, 45.0 Mbit/s asked" in words
    assert "update: 976.6 KiB measured, 1.9 MiB asked" in words
    assert advice["answers"]["fastest"]["sure"] == "fairly"
    assert [row["distance"] for row in advice["conditions"]] == sorted(row["distance"] for row in advice["conditions"])
    assert len(advice["conditions"]) == 2


def test_much_loss_is_for_ltp_whatever_was_measured(wifi: Path) -> None:
    for network, notes in (("rate=20mbit,loss=5%", 0), ("rate=20mbit,up.loss=6%", 1), ("wifi", 0)):
        advice = advise(Question(network, "payload:1MB"), [wifi])
        assert len(advice["notes"]) == notes, network
        assert all("try ltp too: in single runs unifl was slow there" in note for note in advice["notes"])


def test_a_little_loss_is_for_bbr_too(wifi: Path) -> None:
    for network, notes in (("rate=20mbit,loss=0.5%", 1), ("rate=20mbit,loss=0.6%", 0), ("rate=20mbit", 0)):
        advice = advise(Question(network, "payload:1MB"), [wifi])
        assert len(advice["notes"]) == notes, network
        assert all("up to 0.5% loss tcp with BBR does as well as ltp" in note for note in advice["notes"])


def test_few_runs_or_distant_conditions_give_no_certainty(tmp_path: Path) -> None:
    record(tmp_path, "a", "cubic", FAST)
    assert advise(Question("wifi", "payload:1MB"), [tmp_path])["answers"]["fastest"]["sure"] == "no"
    record(tmp_path, "b", "reno", SLOW)
    assert advise(Question("wifi", "payload:1MB"), [tmp_path])["answers"]["fastest"]["sure"] == "no"
    for number in range(4):
        record(tmp_path, f"a{number}", "cubic", FAST)
        record(tmp_path, f"b{number}", "reno", SLOW)
    sure = advise(Question("wifi", "payload:1MB"), [tmp_path])
    assert (sure["answers"]["fastest"]["sure"], sure["verdict"]["sure"]) == ("yes", "yes")
    assert sure["cost"]["again"]["runs"] == 0
    far = advise(Question("rate=5mbit", "payload:1MB"), [tmp_path])
    assert far["nearest"]["distance"] > 2
    assert (far["answers"]["fastest"]["sure"], far["verdict"]["sure"]) == ("no", "no")


def test_failed_runs_are_counted_and_unfinished_runs_left_out(wifi: Path) -> None:
    for name, status in (("c", "failed"), ("d", "running"), ("e", "interrupted")):
        record(wifi, name, "cubic", FAST)
        manifest = json.loads((wifi / name / "manifest.json").read_text())
        (wifi / name / "manifest.json").write_text(json.dumps({**manifest, "status": status}))
    advice = advise(Question("wifi", "payload:1MB"), [wifi])
    assert {row["transport"]: row["failed"] for row in advice["nearest"]["transports"]} == {
        "tcp cubic": 1,
        "tcp reno": 0,
    }
    assert sorted(advice["left_out"].values()) == ["it is interrupted", "it is running"]


def test_failed_cells_are_reported_with_their_reason(tmp_path: Path) -> None:
    base = {"model": MB, "job": {"clients": 2, "rounds": 2}}
    made = bench(tmp_path, repetitions=3, base=base, matrix={"transport": ["tcp", "udp", "ltp"]})

    def execute(path: Path, log: Path, limit: float | None, system: System | None) -> Failure | None:
        plan = Plan.load(path)
        if plan.scheme == "ltp":
            return Failure("no port", "Choose one")
        sections = plan.model_dump(exclude_none=True, include={"transport", "model"})
        make(Path(plan.record.folder) / "a-record", rounds=2, plan=sections, train=None)
        return None

    made.run(Quiet(), execute=execute)
    advice = advise(Question("none", "payload:1MB"), [made.folder.path])
    transports = {row["transport"]: (row["runs"], row["failed"]) for row in advice["nearest"]["transports"]}
    assert transports == {"tcp": (3, 0), "udp": (3, 0), "ltp": (0, 3)}
    assert [(row["transport"], row["failed"], row["reasons"]) for row in advice["failed"]] == [
        ("ltp", 3, ["no port. Choose one"])
    ]
    assert advice["verdict"]["sentence"] == (
        "tcp and udp are alike (udp takes 1.00 to 1.00 times as long); ltp failed; sure: fairly, 3 runs each cannot "
        "prove it, 4 would: --repetitions 4"
    )
    code, out, _ = invoke("--network", "none", "--model", "payload:1MB", "--record", str(made.folder.path))
    assert code == 0
    assert out.splitlines()[0] == advice["verdict"]["sentence"], "the answer comes first"
    assert "failed: ltp, 3 of 3 runs" in out
    assert "no port. Choose one" in out


def test_rounds_with_missing_updates_are_reported(wifi: Path) -> None:
    journal = wifi / "a0" / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"complete": true', '"complete": false'))
    (wifi / "a0" / "rounds.parquet").unlink()
    advice = advise(Question("wifi", "payload:1MB"), [wifi])
    assert {row["transport"]: row["incomplete_rounds"] for row in advice["nearest"]["transports"]}["tcp cubic"] == FAST
    assert f"{FAST} rounds of tcp cubic lacked some of their updates" in advice["answers"]["fastest"]["why"]
    assert "3, 2 rounds short" in invoke("--network", "wifi", "--model", "payload:1MB", "--record", str(wifi))[1]


def test_the_fastest_without_limits(wifi: Path) -> None:
    record(wifi, "free", "reno", FAST, None)
    record(wifi, "free2", "cubic", SLOW, None)
    advice = advise(Question("wifi", "payload:1MB"), [wifi])
    assert advice["answers"]["fastest"]["transport"] == "tcp cubic"
    assert (advice["unconstrained"]["transport"], advice["unconstrained"]["sure"]) == ("tcp reno", "no")


def test_a_transport_within_one_process_is_no_advice_for_a_network(tmp_path: Path) -> None:
    made = bench(tmp_path, repetitions=3)
    made.run(Quiet(), execute=Fake())
    free = advise(Question("none", "lenet"), [made.folder.path])
    assert {row["transport"] for row in free["nearest"]["transports"]} == {"memory", "tcp"}
    assert free["nearest"]["condition"].startswith("loopback, updates of 350.9 KiB, trained")
    wifi = advise(Question("wifi", "lenet"), [tmp_path])
    assert {row["transport"] for row in wifi["nearest"]["transports"]} == {"tcp"}


def test_a_bench_knows_how_long_its_runs_took(tmp_path: Path) -> None:
    made = bench(tmp_path, repetitions=1)
    made.run(Quiet(), execute=Fake())
    for path in made.folder.cells.glob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 50.0}))
    cost = advise(Question("none", "lenet"), [made.folder.path])["cost"]
    assert cost["again"] == {"runs": 6, "seconds": pytest.approx(300)}, "to four runs of each"
    assert cost["as_asked"]["seconds"] == pytest.approx(50 * cost["as_asked"]["runs"])


def test_without_records_there_is_a_plan() -> None:
    advice = advise(Question("wifi,loss=1%", "vgg5", clients=3, stress="cpu=99"), [])
    assert (advice["nearest"], advice["answers"], advice["cost"]) == (None, {}, None)
    matrix = Matrix.of(BenchPlan.loads(advice["plan"]))
    assert [cell.plan.scheme for cell in matrix.cells][:1] == ["tcp"]
    plan = matrix.cells[0].plan
    assert plan.payload == advice["asked"]["update_bytes"] == 2_330_856
    assert plan.job.clients == 3
    assert plan.network is not None
    assert (plan.network.profile, plan.network.loss) == ("wifi", 0.01)
    assert plan.stress is not None
    assert bench_plan(Question("none", "payload:1MB")).base["model"] == {"name": "payload:1000000B"}


@pytest.mark.parametrize(
    ("question", "error"),
    [
        (Question("wfi", "vgg5"), PlanError),
        (Question("wifi", "vgg55"), ModelError),
        (Question("wifi", "vgg5", stress="cpu"), PlanError),
        (Question("wifi", "vgg5", clients=-1), PlanError),
    ],
)
def test_questions_that_mean_nothing(question: Question, error: type[Exception]) -> None:
    with pytest.raises(error):
        advise(question, [])


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is not a folder"):
        advise(Question("wifi", "vgg5"), [tmp_path / "none"])


def plan(**given: Any) -> Plan:
    return Plan.of({"model": MB, "job": {"clients": 4}, **given})


def apart(one: Plan, other: Plan, *, clients: bool = False) -> float:
    return distance(differences(condition_of(one), condition_of(other), clients=clients))


def test_distances_are_doublings() -> None:
    wifi = plan(network=WIFI)
    assert apart(wifi, wifi) == 0
    assert apart(plan(network={"rate": "10mbit"}), plan(network={"rate": "40mbit"})) == pytest.approx(4), "both ways"
    assert apart(plan(), plan(model={"name": "payload:4MB"})) == pytest.approx(2)
    assert apart(plan(), plan(job={"clients": 8})) == 0
    assert apart(plan(), plan(job={"clients": 8}), clients=True) == pytest.approx(1)
    assert apart(plan(), plan(stress={"cpu": 99})) == 3
    assert apart(plan(network={"loss": "1%"}), plan(network={"loss": "2%"})) == pytest.approx(0.93, abs=0.01)
    assert apart(plan(network={"rtt": "40ms"}), plan(network={"rtt": "40ms", "jitter": "2ms"})) == 0.5
    assert apart(plan(), wifi) == 10


def test_conditions_in_words() -> None:
    network = {"rate": "10mbit", "rtt": "40ms", "up": {"loss": "1%"}, "topology": "bottleneck"}
    text = condition_of(plan(network=network, stress={"cpu": 99})).words()
    for words in ("up 10.0 Mbit/s", "loss 1 %", "bottleneck", "updates of 976.6 KiB", "4 clients", "stress cpu=99.0"):
        assert words in text
    assert condition_of(plan(layers={"throttle": "8mbit"})).words().startswith("8.0 Mbit/s")
    assert condition_of(plan(network={"emulator": "none"})).is_free


def test_updates_with_holes_are_another_condition(wifi: Path) -> None:
    holes = {"repair": {"resend": False}}
    record(wifi, "holes", "reno", 1, **holes)
    assert condition_of(plan(**holes)).words().endswith("losses not resent")
    assert apart(plan(), plan(**holes)) == 3
    advice = advise(Question("wifi", "payload:1MB"), [wifi])
    assert advice["answers"]["fastest"]["transport"] == "tcp cubic", "the quicker run did not bring everything"
    assert [row["runs"] for row in advice["conditions"]] == [6, 1]


def test_bursts_count_with_their_mean() -> None:
    burst = condition_of(plan(network={"burst": "1%/24%"}))
    assert burst.up.loss == pytest.approx(0.04)


def test_seeds_of_repetitions_make_no_other_condition() -> None:
    ranges = {"rate": ["10mbit", "20mbit"]}
    one, other = (condition_of(plan(network=ranges, job={"seed": seed})) for seed in (1, 2))
    assert one == other
    assert groups([]) == []


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["advise", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_says_it_in_words(wifi: Path) -> None:
    record(wifi, "free", "reno", FAST, None)
    code, out, err = invoke("--network", "wifi", "--model", "payload:1MB", "--record", str(wifi))
    assert code == 0, err
    for words in (
        "least communication time: tcp cubic, 300.0 ms; next tcp reno, 700.0 ms, 2.33 times as much (2.33 to 2.33)",
        "times as much (2.33 to 2.33); sure: fairly",
        "fastest with no limits at all: tcp reno",
        "to measure more of the measured conditions: 2 runs, about 20 s",
        "least CPU time a round: tcp reno",
    ):
        assert words in out, out


def test_the_command_without_records_prints_a_plan_alone(tmp_path: Path) -> None:
    for extra in ([], ["--record", str(tmp_path)], ["--plan"]):
        code, out, err = invoke("--network", "wifi", "--model", "vgg5", *extra)
        assert code == 0
        plan = BenchPlan.loads(out)
        transports = plan.matrix["transport"]
        assert isinstance(transports, list)
        assert plan.repetitions == fewest_to_prove(pairs_of(len(transports)))
        assert ("would measure it" in err) == ("--plan" not in extra)
    code, out, _ = invoke("--network", "wifi", "--model", "vgg5", "--json")
    assert json.loads(out)["nearest"] is None


def test_the_systems_bbr_is_named_and_warned_of(tmp_path: Path) -> None:
    said = {**ENDED, "congestion_control": {"asked": None, "system": "bbr"}}
    for scheme, rounds in (("tcp", FAST), ("udp", SLOW)):
        make(tmp_path / scheme, rounds=rounds, plan={"model": MB, "transport": {"url": scheme}, "network": WIFI},
             train=None, manifest=said)  # fmt: skip
    advice = advise(Question("wifi", "payload:1MB"), [tmp_path])
    assert {row["transport"] for row in advice["nearest"]["transports"]} == {"tcp bbr", "udp"}
    assert [note for note in advice["notes"] if "tcp bbr: BBR is this system's congestion control" in note]
    record(tmp_path, "asked", "bbr", FAST, {"rate": "5mbit"})
    record(tmp_path, "asked2", "cubic", FAST, {"rate": "5mbit"})
    assert advise(Question("rate=5mbit", "payload:1MB"), [tmp_path])["notes"] == [], "that was asked for"
