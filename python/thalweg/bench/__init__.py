"""``thalweg bench``: a matrix of jobs, each run several times by turns, and one table of what they came to."""

from __future__ import annotations

from thalweg.bench.matrix import Cell, Matrix
from thalweg.bench.plan import BenchPlan

__all__ = ["BenchPlan", "Cell", "Matrix"]
