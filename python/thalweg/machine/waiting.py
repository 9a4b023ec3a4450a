"""How long one call waits before its caller looks for Ctrl-C and lost processes, and how long a job in an outage."""

from __future__ import annotations

from typing import Final

#: Seconds that one call of the core or of a queue waits at most. To wait longer, call again.
WAIT_SLICE: Final = 0.2
#: Seconds that a job waits by default for a party whose link broke, if it cannot go on without that party; and that a
#: party tries to come back. A dropped VPN or a restarted router takes minutes.
OUTAGE_SECONDS: Final = 600.0
