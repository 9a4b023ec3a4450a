"""What a run leaves behind, and how it is read again."""

from __future__ import annotations

from thalweg.record.folder import Record, RunRecord
from thalweg.record.tables import entry

__all__ = ["Record", "RunRecord", "entry"]
