"""A system whose first client ends with an error as soon as it starts. The others wait for what never comes."""

from __future__ import annotations

import sys

from contract import job, wait_for

one = job()
if one.index == 1:
    sys.exit("this client has a fault")
if one.index == 0:
    one.ready()
wait_for(one.folder / "a file that nobody makes")
