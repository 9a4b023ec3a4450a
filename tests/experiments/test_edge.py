"""The edge experiments: which rounds count, where a system stops, and what results say."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.edge import pictures, run, sweep
from experiments.edge.bench import RoundLine, SystemRun, first_model


def line(number: int, model: str, accuracy: float, time: float) -> RoundLine:
    return {"round": number, "model": model, "accuracy": accuracy, "time": time}


def test_only_rounds_that_change_the_model_count() -> None:
    """Flower goes on with the old model if no node has replied, and evaluates it again."""
    lines = [line(0, "a", 0.1, 1), line(1, "a", 0.1, 5), line(2, "b", 0.8, 9), line(3, "b", 0.8, 12)]
    ended = SystemRun([*lines, line(4, "c", 0.95, 20)], began=1.0, ended=21.0, first="a")
    assert [one["round"] for one in ended.done] == [2, 4]
    assert ended.seconds_to(0.9) == 19.0
    assert ended.table()["seconds_by_round"] == [8.0, 11.0]
    assert SystemRun(lines, began=1.0, first="a").seconds_to(0.9) is None


def test_the_first_model_is_the_same_in_each_process() -> None:
    assert first_model(16) == first_model(16) != first_model(17)


def row(system: str, fault: float, seconds: float | None, name: str = "loss") -> pictures.Row:
    return {
        "key": [name, system, fault],
        "seconds_to_target": seconds,
        "limit": 240,
        "load": [1.0, 2.0],
        "core": "abc",
        "rounds": 3,
    }


def away(system: str, *, goes_on: bool, twice: float) -> pictures.Row:
    measured: pictures.Row = row(system, 360.0, None, "outage")
    measured.update({"goes_on": goes_on, "after": 2.5, "twice": twice, "how": [], "note": "it was gone"})
    return measured


ROWS = [
    row("Flower 1.42", 0.0, 30.0),
    row("Flower 1.42", 0.2, 90.0),
    row("Flower 1.42", 0.5, None),
    row("own rounds, tcp", 0.5, 12.0),
    row("own rounds, tcp", 0.0, 10.0),
    away("own rounds, tcp", goes_on=True, twice=0.01),
    away("own rounds, grpc", goes_on=True, twice=0.3),
    away("own rounds, udp", goes_on=False, twice=0.0),
]


def test_a_system_stops_where_it_first_misses_the_target() -> None:
    assert pictures.stops_at(ROWS[:3], "Flower 1.42") == (0.2, 0.5)
    assert pictures.stops_at(ROWS[3:5], "own rounds, tcp") == (0.5, None)


def test_dropout_counts_from_the_end_of_the_first_round() -> None:
    """The first round has all clients, and its seconds are mostly those of programs that start."""
    ended, missed = row("own rounds, tcp", 0.5, 51.2, "dropout"), row("own rounds, tcp", 0.9, None, "dropout")
    ended["seconds_by_round"], missed["seconds_by_round"] = [31.5, 19.7], []
    assert pictures.curve([missed, ended], "own rounds, tcp") == [(0.5, 19.7), (0.9, None)]


def test_verdicts_and_tables_have_the_numbers(tmp_path: Path) -> None:
    content = {"rows": ROWS, "scale": "full", "command": "python -m experiments run edge", "beside": 4}
    (tmp_path / run.FILE).write_text(json.dumps(content))
    text = run.write(tmp_path)[-1].read_text()
    assert (tmp_path / "loss.png").stat().st_size > 1000
    assert "| Flower 1.42 | 30 | 90 | no | 50 |" in text
    assert "| own rounds, tcp | 10 |  | 12 | - |" in text
    assert "Flower 1.42 reaches the target up to 20, stops at 50" in text
    judged = run.judge(tmp_path)
    assert any("own rounds, tcp goes on after 2.5 s; under 2 % twice: yes (1.0 %)" in one for one in judged)
    assert any("own rounds, grpc goes on after 2.5 s; under 2 % twice: no (30.0 %)" in one for one in judged)
    assert any("own rounds, udp does not go on: it was gone" in one for one in judged)


def test_every_scale_has_cells_of_known_systems() -> None:
    from experiments.edge.bench import SYSTEMS

    for scale in ("ci", "reduced", "full"):
        cells = sweep.cells(scale)
        assert {cell.system for cell in cells} <= set(SYSTEMS)
        assert len({json.dumps(cell.key) for cell in cells}) == len(cells)
