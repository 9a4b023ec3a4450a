"""The first answer of a report on several runs, some of which failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.report.records import make
from thalweg.plan import Plan
from thalweg.report import report
from thalweg.report.cells import NO_REASON, Lost, cells, verdicts, warnings
from thalweg.report.numbers import numbers
from thalweg.report.source import read_run


def run(folder: Path, name: str, scheme: str, rounds: int = 2, **given: Any) -> Path:
    """Write a run whose communication takes 0.1 (rounds + 1) seconds in the median."""
    plan = {"transport": {"url": scheme}, "network": {"profile": "wifi"}}
    return make(folder / name, rounds=rounds, plan=plan, train=None, **given)


def failed(folder: Path, name: str, scheme: str, **manifest: Any) -> Path:
    """Write a run that failed before its first round ended."""
    path = run(folder, name, scheme, 1, parquet=False, lab=False, manifest={"status": "failed", **manifest})
    (path / "journal.jsonl").write_text("")
    return path


def lost(folder: Path, scheme: str = "udp") -> Lost:
    plan = Plan.of({"transport": {"url": scheme}, "network": {"profile": "wifi"}, "model": {"name": "lenet"},
                    "job": {"clients": 2}})  # fmt: skip
    return Lost(plan, folder / "0003.1.toml", "the port is taken. Choose another")


@pytest.fixture
def records(tmp_path: Path) -> list[Path]:
    fast = [run(tmp_path, f"a{number}", "tcp") for number in range(3)]
    slow = [run(tmp_path, f"b{number}", "grpc", 4) for number in range(3)]
    network = {"profile": "wifi", "topology": "star"}
    return [*fast, *slow, failed(tmp_path, "c", "grpc", reason="it broke. Fix it", network=network)]


def test_cells_have_failures_with_their_reasons(records: list[Path], tmp_path: Path) -> None:
    grouped = cells([numbers(read_run(path)) for path in records], [lost(tmp_path)])
    rows = {cell.transport: cell.numbers() for cell in grouped}
    assert list(rows) == ["tcp", "grpc", "udp"], "the fastest first, and those without a time last"
    assert (rows["grpc"].runs, rows["grpc"].failed, rows["grpc"].reasons) == (3, 1, ["it broke. Fix it"])
    assert (rows["udp"].runs, rows["udp"].failed) == (0, 1)
    assert rows["udp"].reasons == ["the port is taken. Choose another"]
    assert rows["udp"].communication_seconds is None
    assert {row.network for row in rows.values()} == {"wifi"}, "a run without a record is where the others are"
    (verdict,) = verdicts(grouped).values()
    assert verdict.sentence == (
        "tcp is fastest; grpc is 67 % slower (67 to 67 %); 1 of 4 runs of grpc failed, udp failed; sure: fairly, "
        "3 runs each cannot prove it, 4 would: --repetitions 4"
    )


def test_a_failure_without_a_reason_says_that(tmp_path: Path) -> None:
    path = failed(tmp_path, "a", "tcp")
    (cell,) = cells([numbers(read_run(path))])
    assert cell.reasons == [NO_REASON]


def test_the_page_answers_first(records: list[Path], tmp_path: Path) -> None:
    made = report(records, tmp_path / "r.html", lost=[lost(tmp_path)])
    text = (tmp_path / "r.html").read_text()
    main = text[text.index("<main>") :]
    places = [main.index(words) for words in ("tcp is fastest", 'data-name="communication-time"', "<td>0.83", "summary")
              if words in main]  # fmt: skip
    assert places == sorted(places)
    for words in ("udp failed", "the port is taken. Choose another", "failed; it broke. Fix it"):
        assert words in main, words
    assert list(made.verdicts) == ["wifi"]
    assert [cell.failed for cell in made.cells] == [0, 1, 1]


def test_a_page_of_failures_alone(tmp_path: Path) -> None:
    made = report([], tmp_path / "r.html", lost=[lost(tmp_path)])
    (named,) = made.verdicts.values()
    assert named.sentence.startswith("no run came to its end; udp failed")
    assert "the port is taken" in (tmp_path / "r.html").read_text()


def test_a_verdict_for_each_network(tmp_path: Path) -> None:
    paths = [
        *(run(tmp_path, f"a{number}", "tcp") for number in range(2)),
        make(tmp_path / "b", plan={"transport": {"url": "tcp"}}, lab=False),
    ]
    by_network = verdicts(cells([numbers(read_run(path)) for path in paths]))
    assert list(by_network) == ["wifi", "loopback"]


def test_the_systems_congestion_control_is_part_of_the_transport(tmp_path: Path) -> None:
    said = {"congestion_control": {"asked": None, "system": "bbr"}}
    paths = [run(tmp_path, "a", "tcp", manifest=said), run(tmp_path, "b", "udp", manifest=said)]
    grouped = cells([numbers(read_run(path)) for path in paths], [lost(tmp_path, "tcp")])
    assert {cell.transport: (len(cell.done), len(cell.failed)) for cell in grouped} == {
        "tcp bbr": (1, 1),
        "udp": (1, 0),
    }
    (note,) = warnings(grouped)
    assert note.startswith("tcp bbr: BBR is this system's congestion control")
    made = report(paths, tmp_path / "r.html")
    assert made.notes == [note]
    assert warnings(grouped[:1]) == [], "nothing is compared"


def test_what_a_plan_asks_for_is_no_warning(tmp_path: Path) -> None:
    plan = {"transport": {"url": "tcp", "client_congestion": ["bbr", "cubic"]}, "network": {"profile": "wifi"}}
    dealt = numbers(read_run(make(tmp_path / "a", plan=plan, train=None)))
    whole = numbers(read_run(make(tmp_path / "b", plan={**plan, "network": {"tcp": {"congestion": "bbr"}},
                                                         "transport": {"url": "tcp"}}, train=None)))  # fmt: skip
    assert [dealt.transport, whole.transport] == ["tcp bbr+cubic", "tcp bbr"]
    assert warnings(cells([dealt, whole])) == []
