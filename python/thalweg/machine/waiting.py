"""How long a call may wait before the caller looks at Ctrl-C, lost processes and its own deadline."""

from __future__ import annotations

from typing import Final

#: Seconds that one call of the core or of a queue waits at most. To wait longer, call again.
WAIT_SLICE: Final = 0.2
