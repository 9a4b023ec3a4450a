"""``thalweg run --tag``: each group of clients sends to its own nodes, as in a Flame schema."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.conftest import Program
from thalweg.record import Record

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="workers share memory as Linux alone does"),
]
TREE: Final = ("--model", "payload:64KiB", "--clients", "4", "--rounds", "2", "--aggregation", "tree", "--nodes", "2")


def schema(folder: Path, *groups: str, roles: Any = (), pair: tuple[str, str] = ("trainer", "aggregator")) -> str:
    """Write a schema of clients in groups, an aggregator for each group, and a top."""
    named = [{"name": "trainer", "isDataConsumer": True}, {"name": "aggregator"}, {"name": "top"}, *roles]
    channels = [
        {"name": "up", "pair": pair, "groupBy": {"type": "tag", "value": [f"default/{one}" for one in groups]}},
        {"name": "global", "pair": ["aggregator", "top"], "groupBy": {"type": "tag", "value": ["default"]}},
    ]
    channels += [{"name": f"to-{role['name']}", "pair": role["pair"]} for role in roles]
    plain = [{key: value for key, value in role.items() if key != "pair"} for role in named]
    path = folder / "schema.json"
    path.write_text(json.dumps({"name": "regions", "roles": plain, "channels": channels}, indent=1))
    return str(path)


def test_clients_send_to_the_nodes_of_their_group(result: Callable[..., Any], tmp_path: Path) -> None:
    done = result("run", *TREE, "--tag", schema(tmp_path, "west", "east"))
    assert [row["participants"] for row in done["rounds"]] == [4, 4]
    assert done["tree"]["nodes"] == [{"node": "node-0", "clients": 2}, {"node": "node-1", "clients": 2}]
    record = Record(tmp_path / done["record"])
    log = (record.path / "log.txt").read_text()
    assert "node-0 serves the group 'default/west': client-1, client-3" in log
    assert "node-1 serves the group 'default/east': client-2, client-4" in log


@pytest.mark.parametrize(
    ("groups", "more", "said"),
    [
        (("a", "b", "c"), {}, "has 3 groups for 2 nodes"),
        (("a", "b"), {"pair": ("trainer", "nobody")}, "nobody"),
        (("a", "b"), {"roles": [{"name": "again", "pair": ["top", "again"]}, ]}, "channels above the clients"),
    ],
    ids=["impossible placement", "unknown role", "middle nodes without a dedicated top"],
)  # fmt: skip
def test_a_schema_that_cannot_be_run_is_refused_before_anything_starts(
    start: Callable[..., Program], tmp_path: Path, groups: Any, more: Any, said: str
) -> None:
    code, out, err = start("run", *TREE, "--tag", schema(tmp_path, *groups, **more), "--record", "made").end()
    assert (code, out) == (2, "")
    assert said in err
    assert "hint: " in err
    assert "starting" not in err
    assert not (tmp_path / "made").exists()


def test_a_cycle_is_refused_with_its_line(start: Callable[..., Program], tmp_path: Path) -> None:
    roles = [{"name": "one", "pair": ["top", "one"]}, {"name": "two", "pair": ["one", "two"]}]
    path = Path(schema(tmp_path, "a", "b", roles=roles))
    printed = json.loads(path.read_text())
    printed["channels"].append({"name": "back", "pair": ["two", "aggregator"]})
    path.write_text(json.dumps(printed, indent=1))
    code, _, err = start("run", *TREE, "--tag", str(path)).end()
    assert code == 2
    assert ", line " in err
    assert "closes a cycle" in err
    assert "hint: " in err
