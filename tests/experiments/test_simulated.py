"""Simulated figures: the stored results can be reproduced from the plan beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import simulated
from experiments.plan import ROOT

FOLDER = ROOT / "lifl" / "fig08"


@pytest.mark.parametrize("name", ["fig08", "fig10"])
def test_a_figure_is_what_its_plan_gives(name: str) -> None:
    folder = ROOT / "lifl" / name
    figure = simulated.load(folder)
    simulated_rows = simulated.rows(figure)
    why = simulated.why_not(figure, folder.parent)
    judged = simulated.verdicts(figure, simulated_rows, accepted=why is None)
    kept = json.loads((folder / "simulated.json").read_text())
    assert (kept["simulated"], kept["accepted"], kept["why"]) == (True, why is None, why)
    assert (kept["rows"], kept["claims"]) == (simulated_rows, judged), (
        f"run python -m experiments.simulated lifl/{name}"
    )
    assert simulated.table(simulated_rows, judged, "nobody looked").endswith(
        "simulated, and not accepted: nobody looked."
    )
    assert simulated.of_file(folder) in simulated.table(simulated_rows, judged, why)


def test_nodes_used_are_the_papers_and_a_claim_can_be_missed() -> None:
    figure = simulated.load(FOLDER)
    simulated_rows = simulated.rows(figure)
    accepted = simulated.verdicts(figure, simulated_rows, accepted=True)
    nodes = [one for one in accepted if one["claim"].startswith("nodes used")]
    assert len(nodes) == 12
    assert all(one["verdict"] for one in nodes)
    greedy = figure.model_copy(update={"ratios": [figure.ratios[0].model_copy(update={"paper": 1e6})]})
    assert simulated.verdicts(greedy, simulated_rows, accepted=True)[0]["verdict"] is False
    unmet = simulated.verdicts(greedy, simulated_rows, accepted=False)
    assert {one["verdict"] for one in unmet} == {None}, "a simulation that is not accepted answers nothing"
    assert "| 1e+06 | 3.84 | not judged |" in simulated.claims_table(unmet, "nobody looked")


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ([], "the study has no live run of sl-h that"),
        ([("sl-h", 0.2, 5), ("lifl", 0.0, 5)], "a live run of sl-h was missed by +20 %"),
        ([("sl-h", -0.1, 1), ("lifl", 0.0, 5)], "live runs of sl-h that were met have fewer than 5 nodes"),
        ([("sl-h", -0.1, 5), ("lifl", 0.14, 5)], None),
    ],
)
def test_times_are_accepted_by_live_runs(cells: list[tuple[str, float, int]], why: str | None, tmp_path: Path) -> None:
    made = [{"labels": {}, "system": system, "off": off, "nodes_used": nodes} for system, off, nodes in cells]
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "measured.json").write_text(json.dumps({"modes": {"live": {"cells": made}}}))
    reason = simulated.why_not(simulated.load(FOLDER), tmp_path)
    assert reason is None if why is None else str(reason).startswith(why)
