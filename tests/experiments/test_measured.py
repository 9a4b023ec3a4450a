"""What a run leaves of what was measured before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments import measured

ORDER = ["paper", "fair"]


def part(seconds: float) -> dict[str, Any]:
    return {"cells": [{"labels": {"case": "tcp"}, "seconds": seconds}]}


def seconds(file: Path) -> dict[str, float]:
    return {mode: cells[0].numbers["seconds"] for mode, cells in measured.read(file).items()}


def test_modes_that_were_not_run_stay_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    measured.write(file, "study/figure", "full", {"fair": part(1.0)}, ORDER)
    measured.write(file, "study/figure", "full", {"paper": part(2.0)}, ORDER)
    assert list(seconds(file).items()) == [("paper", 2.0), ("fair", 1.0)]
    measured.write(file, "study/figure", "full", {"fair": part(3.0)}, ORDER)
    assert seconds(file) == {"paper": 2.0, "fair": 3.0}


def test_what_is_of_another_size_or_of_no_mode_goes(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    measured.write(file, "study/figure", "full", {"old": part(1.0)}, ["old"])
    measured.write(file, "study/figure", "full", {"paper": part(2.0)}, ORDER)
    assert seconds(file) == {"paper": 2.0}
    measured.write(file, "study/figure", "ci", {"fair": part(3.0)}, ORDER)
    assert seconds(file) == {"fair": 3.0}
    file.write_text("damaged")
    measured.write(file, "study/figure", "ci", {"paper": part(4.0)}, ORDER)
    assert seconds(file) == {"paper": 4.0}
