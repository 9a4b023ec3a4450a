"""``thalweg bench``: runs a matrix of jobs, each several times in turn, and writes one table of the results."""

from __future__ import annotations

from thalweg.bench.matrix import Cell, Matrix
from thalweg.bench.plan import BenchPlan

__all__ = ["BenchPlan", "Cell", "Matrix"]
