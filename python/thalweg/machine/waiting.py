"""The maximum time for which one call waits. After it the caller checks for Ctrl-C, lost processes and its deadline."""

from __future__ import annotations

from typing import Final

#: Seconds that one call of the core or of a queue waits at most. To wait longer, call again.
WAIT_SLICE: Final = 0.2
