"""Options of commands that come from a plan's keys."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from thalweg.cli import app
from thalweg.errors import PlanError
from thalweg.job import run as jobs
from thalweg.plan import Plan
from thalweg.sections.marks import keys


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that `thalweg run` gets. Nothing is run."""
    found: list[Plan] = []

    def run(plan: Plan, *_: object, **__: object) -> None:
        found.append(plan)
        raise PlanError("that is all", "none")

    monkeypatch.setattr(jobs, "run", run)
    return found


def asked(plans: list[Plan], *arguments: str) -> dict[str, Any]:
    CliRunner().invoke(app, ["run", *arguments])
    (plan,) = plans
    return plan.given()


@pytest.mark.parametrize(
    ("arguments", "table"),
    [
        ([], {}),
        (["--gather", "in-order"], {"transport": {"gather": "in-order"}}),
        (["--clients", "3", "--deadline", "2.5"], {"job": {"clients": 3, "deadline": 2.5}}),
        (["--deterministic"], {"aggregation": {"deterministic": True}}),
        (["--tensors", "head.*", "--tensors", "!*.bias"], {"model": {"tensors": ["head.*", "!*.bias"]}}),
        (["--throttle", "20mbit"], {"layers": {"throttle": 20_000_000}}),
        (["--data-root", "here", "--record", "there"], {"data": {"root": "here"}, "record": {"folder": "there"}}),
        (["--app", "my_app:App"], {"app": {"object": "my_app:App"}}),
        (["--option", "qos=1", "--transport", "mqtt"], {"transport": {"url": "mqtt", "options": {"qos": 1}}}),
    ],
)
def test_an_option_sets_its_key(plans: list[Plan], arguments: list[str], table: dict[str, Any]) -> None:
    assert asked(plans, *arguments) == table


def test_a_network_in_words_goes_before_its_keys(plans: list[Plan]) -> None:
    said = asked(plans, "--topology", "dumbbell", "--network", "wan,loss=2%")
    assert said["network"] == {"profile": "wan", "loss": 0.02, "topology": "dumbbell"}


def test_an_invalid_value_is_refused_with_the_valid_ones() -> None:
    done = CliRunner().invoke(app, ["run", "--gather", "sideways"])
    assert done.exit_code != 0
    assert "gather in [transport] is 'sideways', not 'concurrent' or 'in-order'" in done.stderr


@pytest.mark.parametrize(
    ("option", "cause"),
    [
        (["--threads", "0"], "threads in [training] is 0, not at least 1"),
        (["--tls", "maybe"], "tls in [security] is 'maybe', not 'auto', 'on' or 'off'"),
    ],
)
def test_a_client_checks_what_a_plan_would(option: list[str], cause: str) -> None:
    done = CliRunner().invoke(app, ["client", "tcp://127.0.0.1:1", *option])
    assert done.exit_code != 0
    assert cause in done.stderr


OPTIONS = {
    f"{command} --{option.name or key.name.replace('_', '-')}": (option, key.field.description or "")
    for key in keys(Plan)
    for option in key.options
    for command in option.of
}


@pytest.mark.parametrize("words", OPTIONS)
def test_an_option_has_its_keys_meaning(words: str) -> None:
    (*path, flag), (option, meaning) = words.split(), OPTIONS[words]
    made: Any = typer.main.get_command(app)
    for name in path:
        made = made.commands[name]
    (param,) = [one for one in made.get_params(typer.Context(made)) if flag in one.opts]
    assert param.help == option.help or meaning[1:] in param.help
    assert param.default is None
