"""Writes and reads the record of a run."""

from __future__ import annotations

from thalweg.record.folder import Record, RunRecord
from thalweg.record.tables import entry

__all__ = ["Record", "RunRecord", "entry"]
