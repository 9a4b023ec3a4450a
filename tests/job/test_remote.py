from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from thalweg.errors import ThalwegError
from thalweg.job.star.remote import Membership, join_job, listen_url
from thalweg.plan import Plan


def test_where_a_server_listens() -> None:
    assert listen_url(Plan.of({})) == "tcp://127.0.0.1:0"
    assert listen_url(Plan.of({"hosts": {"server": "10.0.0.1:7070"}})) == "tcp://10.0.0.1:7070"


def test_a_plan_says_where_the_server_and_the_token_are(tmp_path: Path) -> None:
    plan = tmp_path / "job.toml"
    plan.write_text('[hosts]\nserver = "10.0.0.1:7070"\n[security]\ntoken_file = "own.token"\n')
    membership = Membership(
        target=str(plan),
        name=None,
        token_file=None,
        ca=None,
        cert=None,
        key=None,
        tls="auto",
        congestion=None,
        login_file=None,
        own={},
        timeout=0,
    )
    with pytest.raises(ThalwegError, match=r"own\.token"):
        join_job(membership, None, None, None, print)
    other = replace(membership, token_file=tmp_path / "other.token")
    with pytest.raises(ThalwegError, match=r"other\.token"):
        join_job(other, None, None, None, print)
