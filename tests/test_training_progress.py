"""What a client says of its training reaches the run's display, seldom enough, and bars move by it."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path

import pytest
from rich.console import Console

import thalweg
from thalweg import training_progress
from thalweg.job.run import run
from thalweg.ui.progress import Bars, LineProgress

APP = """
import numpy as np
import thalweg
from thalweg import training_progress

training_progress.INTERVAL = 0.0  # each report is passed on


class App:
    def model(self):
        return {"w": np.zeros(10, np.float32)}

    def train_data(self):
        return ()

    def train(self, model, data, config):
        print('{"say": "trained", "round": 1e999, "fraction": 0.5}', flush=True)  # an app may print anything
        print("an unfinished line", end="", flush=True)
        for step in range(4):
            model["w"][:] += 1
            thalweg.report_progress((step + 1) / 4)
        return 1, {}
"""


class Shown(LineProgress):
    """Keeps what clients say of their training."""

    shows_training = True

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[tuple[str, int], list[float]] = {}

    def trained(self, client: str, number: int, fraction: float) -> None:
        self.said.setdefault((client, number), []).append(fraction)


@pytest.mark.parametrize("transport", ["tcp", "memory"])  # clients are processes, and threads
def test_clients_say_how_far_they_are(transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training_progress, "INTERVAL", training_progress.INTERVAL)  # the app changes it
    (tmp_path / f"steps_{transport}.py").write_text(APP)
    plan = thalweg.Plan.of(
        {
            "job": {"clients": 2, "rounds": 2},
            "app": f"steps_{transport}.py:App",
            "transport": {"url": transport},
            "record": {"folder": str(tmp_path / "runs")},
        }
    )
    progress = Shown()
    run(plan, progress)
    assert progress.said == {
        (f"client-{client}", number): [0.25, 0.5, 0.75, 1.0] for client in (1, 2) for number in (1, 2)
    }


def test_reports_are_seldom_and_from_0_to_1() -> None:
    now, shown = [0.0], list[tuple[int, float]]()
    training_progress.report_progress(0.5)  # nobody shows it: no effect
    training_progress.show_with(lambda number, fraction: shown.append((number, fraction)))
    training_progress.report_progress(0.5)  # no training runs: no effect
    with training_progress.showing(3, lambda: now[0]):
        for fraction in (-1.0, math.nan, 0.2, 0.4, 0.6, 0.8, 7.0):
            now[0] += training_progress.INTERVAL / 2
            thalweg.report_progress(fraction)
    training_progress.report_progress(0.5)
    assert shown == [(3, 0.2), (3, 0.6), (3, 1.0)]


def rows(bars: Bars, output: io.StringIO) -> dict[str, str]:
    """Draw the bars; return each row by its first word."""
    output.truncate(0)
    output.seek(0)
    bars.refresh()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue())  # without movements of the cursor
    lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
    assert max(map(len, lines)) <= 80
    return {line.split()[0]: line for line in lines}


def state(**clients: tuple[str, float]) -> str:
    return json.dumps({"clients": {name: {"phase": one[0], "sent_fraction": one[1]} for name, one in clients.items()}})


def test_bars_move_while_clients_train() -> None:
    output = io.StringIO()
    # A terminal of 80 columns without colours and cursor movements, so that its text can be read.
    bars = Bars(Console(file=output, width=80, force_terminal=True, color_system=None, legacy_windows=False))
    bars.begin(1, 3)
    bars.observe(state(anna=("training", 0.0), berta=("training", 0.0)))
    before = rows(bars, output)
    bars.trained("anna", 1, 0.5)
    bars.observe(state(anna=("training", 0.0), berta=("training", 0.0)))
    after = rows(bars, output)
    full = "━"  # what is not done yet is blank without colours
    assert (before["anna"].count(full), after["anna"].count(full), after["berta"].count(full)) == (0, 10, 0)
    assert "training 50 %" in after["anna"]
    assert "%" not in after["berta"], "it has said nothing yet"
    bars.observe(state(anna=("sending", 0.9), berta=("training", 0.0)))
    assert "sending" in rows(bars, output)["anna"]
    # What a client said in a round is not shown in the next one.
    bars.begin(2, 3)
    bars.observe(state(anna=("training", 0.0)))
    assert "%" not in rows(bars, output)["anna"]
    bars.close()


def test_long_names_fit_a_terminal_of_80_columns() -> None:
    output = io.StringIO()
    bars = Bars(Console(file=output, width=80, force_terminal=True, color_system=None, legacy_windows=False))
    bars.begin(1, 100_000)
    name = "a-hospital-with-a-long-name-" * 3
    phases = ("receiving", "training", "offered", "sending", "staged", "whole")
    bars.observe(state(**{f"{name}{at}": (phase, 0.5) for at, phase in enumerate(phases)}))
    drawn = rows(bars, output)
    assert len(drawn) == 2, "the round, and clients whose names begin alike"
    assert "1 receiving, 1 training" in drawn["round"]
    assert "0:00:0" in drawn["round"]
    bars.close()
