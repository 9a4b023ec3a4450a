"""Values that a shell completes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from thalweg.cli import values
from thalweg.plan import Plan
from thalweg.sections.marks import keys


def completed(*words: str) -> list[str]:
    """What bash gets for the last of these words."""
    asked = {"_THALWEG_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    code = "from thalweg.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["run", "--transport", "t"], ["tcp"]),
        (["run", "--model", "vgg"], ["vgg5", "vgg8", "vgg16"]),
        (["run", "--data", "dig"], ["digits"]),
        (["run", "--graph", "r"], ["ring", "random:0.3"]),
        (["run", "--network", "wi"], ["wifi"]),
        (["run", "--algorithm", "dp"], ["dpsgd"]),
        (["run", "--aggregation", ""], ["star", "tree"]),
        (["run", "--clock", "v"], ["virtual"]),
        (["run", "--compression", ""], ["int8", "int4", "int2", "topk:0.01", "powersgd:4"]),
        (["server", "--compression-down", "t"], ["topk:0.01"]),
        (["run", "--topology", "b"], ["bottleneck"]),
        (["run", "--partition", "d"], ["dirichlet:0.5"]),
        (["run", "--track", "t"], ["tensorboard:logs", "trackio"]),
        (["pki", "issue", "anna", "--role", "t"], ["task-member", "tree-node"]),
        (["pki", "revoke", "anna", "--role", "c"], ["client"]),
        (["new", "here", "--from", "l"], ["lora"]),
    ],
)
def test_a_shell_completes_values(words: list[str], found: list[str]) -> None:
    assert completed("thalweg", *words) == found


def test_each_key_with_named_values_has_an_option_and_takes_them() -> None:
    by_path = {key.path: key for key in keys(Plan)}
    for path, names in values.NAMED.items():
        assert by_path[path].options, path
        assert names(), path
    for word in values.NAMED["job.graph"]():
        assert Plan.of({"job": {"graph": word, "clients": 12}, "model": {"name": "payload:1KiB"}}).job.graph == word
    for path in ("compression.scheme", "data.partition", "network.topology", "record.track"):
        for word in values.NAMED[path]():
            Plan.of({}).merge({"job.clients": 12, "network": "lan" if path.startswith("network") else None, path: word})
    for word in values.NAMED["compression.down"]():
        Plan.of({}).merge({"compression.scheme": "int8", "compression.down": word})
    for name in values.NAMED["model.name"]():
        data = "english" if name.startswith("gpt2") else "mnist"
        table = {"model": {"name": name}} if "payload" in name else {"model": {"name": name}, "data": {"name": data}}
        assert Plan.of(table).model.name == name


def test_a_key_that_takes_any_value_has_none() -> None:
    assert values.completing(next(key for key in keys(Plan) if key.path == "job.rounds")) is None
