"""Figures in virtual time: what is in the repository follows from the plan beside it."""

from __future__ import annotations

import json

from experiments import simulated
from experiments.plan import ROOT

FOLDER = ROOT / "lifl" / "fig08"


def test_figure_8_is_what_its_plan_gives() -> None:
    figure = simulated.load(FOLDER)
    found = simulated.rows(figure)
    judged = simulated.verdicts(figure, found)
    kept = json.loads((FOLDER / "simulated.json").read_text())
    assert (kept["simulated"], kept["accepted"]) == (True, False)
    assert (kept["rows"], kept["claims"]) == (found, judged), "run python -m experiments.simulated lifl/fig08"
    assert simulated.table(found, judged).endswith(simulated.CAVEAT)


def test_nodes_used_are_the_papers_and_a_claim_can_be_missed() -> None:
    figure = simulated.load(FOLDER)
    found = simulated.rows(figure)
    nodes = [one for one in simulated.verdicts(figure, found) if one["claim"].startswith("nodes used")]
    assert len(nodes) == 12
    assert all(one["verdict"] for one in nodes)
    greedy = figure.model_copy(update={"ratios": [figure.ratios[0].model_copy(update={"paper": 1e6})]})
    assert not simulated.verdicts(greedy, found)[0]["verdict"]
