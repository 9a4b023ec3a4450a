"""A system whose clients end with an error as soon as they start."""

from __future__ import annotations

import sys

from contract import job, wait_for

one = job()
if one.index:
    sys.exit("this client has a fault")
one.ready()
wait_for(one.folder / "a file that nobody makes")
