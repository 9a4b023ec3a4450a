"""Writes the tables and the picture of README.md from the results of learning.py and live.py.

python -m benches.diloco.page
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
RESULTS: Final = HERE / "results"
# Steps for which the tables give the time of waiting.
PERIOD: Final = 100
LEARNING: Final = {"data-parallel": "data-parallel.json", "DiLoCo": "diloco.json"}
NAMES: Final = {
    "alone": "no exchange",
    "thalweg": "thalweg, 4 fragments, overlapped",
    "thalweg-f16": "thalweg in float16",
    "thalweg-int8": "thalweg in int8",
    "thalweg-int8-28": "thalweg in int8, every 28 steps",
    "thalweg-whole": "thalweg, whole model, waiting",
    "thalweg-each-step": "thalweg, each step",
    "gloo": "gloo all-reduce, whole model, waiting",
    "gloo-each-step": "gloo all-reduce, each step",
    "torchft": "torchft 0.2.0, 4 fragments, overlapped",
    "torchft-buckets": "torchft with use_bucketization",
    "hivemind": "hivemind 1.1.12, whole model, overlapped",
}


def runs() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / "live.jsonl").read_text().splitlines()]


def median(found: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(one[key] for one in found))


def live_table(all_runs: list[dict[str, Any]], kill: str) -> str:
    """Return the table of the runs in which peers were killed as ``kill`` says: none, one or each."""
    lines = ["| | runs | MB a peer and step | computing | of all four places | waiting in 100 steps | longest wait |"]
    lines.append("|---|---|---|---|---|---|---|")
    for way, name in NAMES.items():
        of_way = [one for one in all_runs if one["way"] == way and one["settings"]["kill"] == kill]
        found = [one for one in of_way if "failed" not in one]
        if found:
            per_period = median(found, "waited_a_period") / found[0]["settings"]["every"] * PERIOD
            cells = [
                f"{len(found)}",
                f"{median(found, 'bytes_a_step') / 1e6:.3f}",
                f"{median(found, 'computing'):.1%}",
                f"{median(found, 'computing_of_all'):.1%}",
                f"{per_period:.2f} s",
                f"{median(found, 'longest_wait'):.2f} s",
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        elif of_way:
            lines.append(f"| {name} | {len(of_way)} | the job ends: {of_way[-1]['failed']} | | | | |")
    return "\n".join(lines)


def learning() -> dict[str, dict[str, Any]]:
    paths = {name: RESULTS / file for name, file in LEARNING.items()}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def draw(curves: dict[str, dict[str, Any]], all_runs: list[dict[str, Any]]) -> None:
    """Draw the loss by steps, and beside it the bytes and the share of time computing of each way."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for name, table in curves.items():
        left.plot(*zip(*((one["step"], one["loss"]) for one in table["entries"]), strict=True), label=name)
    left.set(xlabel="steps", ylabel="loss on held-out text", title="loss at equal steps")
    left.legend()
    for way, name in NAMES.items():
        found = [one for one in all_runs if one["way"] == way and "failed" not in one]
        found = [one for one in found if one["settings"]["kill"] == "none"]
        if found and way != "alone":
            right.scatter(median(found, "bytes_a_step") / 1e6, median(found, "computing"), label=name)
    right.set(xscale="log", xlabel="MB that a peer sends in a step", ylabel="share of time computing", ylim=(0, 1.05))
    right.set_title("50 Mbit/s, 80 ms, four peers")
    right.legend(fontsize=7, loc="lower left")
    figure.savefig(RESULTS / "diloco.png", dpi=110)


def main() -> int:
    all_runs = runs()
    curves = learning()
    draw(curves, all_runs)
    sections = {"live": live_table(all_runs, "none"), "one": live_table(all_runs, "one")}
    sections["each"] = live_table(all_runs, "each")
    page = HERE / "README.md"
    text = page.read_text()
    for name, table in sections.items():
        begin, end = f"<!-- table {name} -->", f"<!-- table {name} ends -->"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n\n{table}\n\n{end}{tail}"
    page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
