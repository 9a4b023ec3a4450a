"""Plans that choose what only builds with baselines have."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg import _core
from thalweg.errors import PlanError
from thalweg.plan import Plan, baselines, check_transport
from thalweg.transports import registry


def of_tree(**keys: Any) -> dict[str, Any]:
    return {"aggregation": {"shape": "tree"}, "tree": keys}


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"transport": {"url": "rdma", "options": {"mode": "fedrdma"}}}, "transport.options.mode = 'fedrdma'"),
        (
            {"transport": {"url": "rdma", "options": {"mode": "fedrdma-e", "race": True}}},
            "transport.options.race = true",
        ),
        ({"transport": {"url": "unifl", "options": {"control": "paper"}}}, "transport.options.control = 'paper'"),
        ({"repair": {"policy": "fedcomm-legacy", "resend": False}}, "repair.policy = 'fedcomm-legacy'"),
        (
            {"layers": {"seal": {"cipher": "aes-cbc"}}, "security": {"tls": "on"}},
            "layers.seal.cipher = 'aes-cbc'",
        ),
        (of_tree(data_plane="sockets"), "tree.data_plane = 'sockets'"),
        (of_tree(side_process=True), "tree.side_process = true"),
        (of_tree(system="sf"), "tree.data_plane = 'sockets' (of tree.system = 'sf')"),
        (of_tree(system="sl"), "tree.data_plane = 'broker' (of tree.system = 'sl')"),
    ],
)
def test_a_baseline_is_refused_by_a_build_without(sections: dict[str, Any], named: str) -> None:
    plan = Plan.of(sections)
    assert baselines.chosen(plan)[0] == named
    baselines.check(plan, has=True)
    with pytest.raises(PlanError) as refused:
        baselines.check(plan, has=False)
    assert refused.value.cause == f"{named} is for comparison only, and this build has no baselines"
    assert "make setup BASELINES=1" in refused.value.hint
    if not _core.BASELINES:
        with pytest.raises(PlanError, match="no baselines"):
            check_transport(plan, registry.transports())


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"transport": {"url": "rdma", "options": {"mode": "fedrdma-e", "race": False}}},
        {"transport": {"url": "unifl", "options": {"control": "delay"}}},
        {"layers": {"seal": {}}, "security": {"tls": "on"}},
        of_tree(),
        of_tree(system="sf-mono"),
        of_tree(system="sl-h"),
    ],
)
def test_other_plans_need_none(sections: dict[str, Any]) -> None:
    baselines.check(Plan.of(sections), has=False)
