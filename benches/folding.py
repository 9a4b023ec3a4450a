"""The fold against the machine's memory bandwidth and against NumPy, measured alternately."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import numpy as np

from benches.common import FOLDER, Figure, Spread, note

ELEMENTS = 232_000_000 // 4
BLOCK = 64 << 10  # elements of a block that fits into the cache


def numpy_best() -> float:
    """Return the seconds that NumPy needs to add a weighted update, in the faster of two ways."""
    total, update = np.ones(ELEMENTS, np.float32), np.ones(ELEMENTS, np.float32)
    scratch = np.empty(BLOCK, np.float32)
    times = []
    for _ in range(3):
        started = time.perf_counter()
        for at in range(0, ELEMENTS, BLOCK):
            part = update[at : at + BLOCK]
            np.multiply(part, np.float32(0.5), out=scratch[: len(part)])
            total[at : at + BLOCK] += scratch[: len(part)]
        times.append(time.perf_counter() - started)
        started = time.perf_counter()
        total += update * np.float32(0.5)
        times.append(time.perf_counter() - started)
    return min(times)


def _example(name: str, *arguments: str) -> dict[str, Any]:
    """Return the JSON output of a benchmark of the crate ``thalweg-fold``."""
    command = ["cargo", "run", "--release", "--quiet", "-p", "thalweg-fold", "--example", name, "--", *arguments]
    results: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=FOLDER).stdout)
    return results


def fold() -> list[Figure]:
    """Run the crate's benchmark and NumPy alternately."""
    note("fold of 232 MB (builds the bench first)")
    results: list[dict[str, Any]] = []
    numpy_seconds: list[float] = []
    for _ in range(7):
        results.append(_example("fold_bench", "232", "3"))
        numpy_seconds.append(numpy_best())
    return [*_figures(results, numpy_seconds), together()]


def together() -> Figure:
    """Fold eight queued updates in one pass, and one after the other."""
    result = _example("many_bench", "232", "7")
    ratio, singly, jointly = (result[name] for name in ("ratio", "one_by_one_ms", "one_pass_ms"))
    text = f"{jointly:.0f} ms, one by one {singly:.0f} ms, ratio {ratio:.2f}"
    return Figure("eight queued updates of 232 MB in one pass, against one by one", text, "0.8", ratio <= 0.8, result)


def _figures(results: list[dict[str, Any]], numpy_seconds: list[float]) -> list[Figure]:
    def seconds(task: str) -> Spread:
        return Spread.of([result[task]["median_ms"] / 1e3 for result in results])

    plain = min((seconds(task) for task in results[0] if task.startswith("plain")), key=lambda spread: spread.median)
    ours, numpy_spread = seconds("fold_f32"), Spread.of(numpy_seconds)
    ratio = plain.median / ours.median
    details = {
        "seconds": vars(ours),
        "plain_seconds": vars(plain),
        "numpy_seconds": vars(numpy_spread),
        "runs": results,
    }
    bandwidth = f"{ours.text(1e3)} ms, plain loop {plain.text(1e3)} ms, ratio {ratio:.2f}"
    numpy_text = f"{ours.text(1e3)} ms, NumPy's best {numpy_spread.text(1e3)} ms"
    return [
        Figure("fold of 232 MB f32, against memory bandwidth", bandwidth, "0.85", ratio >= 0.85, details),
        Figure("fold of 232 MB f32, against NumPy", numpy_text, "never slower", ours.median <= numpy_spread.median),
    ]
