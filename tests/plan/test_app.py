"""Apps and choices of tensors in plans."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg.advise.condition import condition_of
from thalweg.apps.received_config import ReceivedConfig
from thalweg.bench import BenchPlan, Matrix
from thalweg.errors import ModelError, PlanError, ThalwegError
from thalweg.job.common.parties import PartyBuilder, round_config
from thalweg.plan import Plan

OPTIONS = {"object": "my_app:App", "options": {"lr": 0.1, "deep": True, "name": "x", "steps": 3}}


def test_an_app_is_text_or_a_table() -> None:
    short = Plan.loads('app = "my_app:App"')
    assert short == Plan.loads('[app]\nobject = "my_app:App"')
    assert short.label == "my_app:App"
    assert not short.is_payload
    assert Plan.of({}).label == "vgg5"


@pytest.mark.parametrize("app", ["some/where.py:make", OPTIONS])
def test_a_plan_with_an_app_survives_its_file(app: Any) -> None:
    plan = Plan.of({"app": app, "training": {"threads": 2}, "model": {"tensors": ["head.*", "!*.bias"]}})
    assert Plan.loads(plan.to_toml()) == Plan.of(Plan.loads(plan.to_toml()).model_dump(exclude_unset=True))
    again = Plan.loads(plan.to_toml())
    assert (again.app, again.model.tensors, again.training.threads) == (plan.app, ["head.*", "!*.bias"], 2)
    assert not plan.differences(again)


def test_the_command_line_names_an_app() -> None:
    plan = Plan.of({"app": OPTIONS}).merge({"app.object": "other:App"})
    assert plan.app is not None
    assert (plan.app.object, plan.app.options) == ("other:App", OPTIONS["options"])
    assert Plan.of({}).merge({"app.object": "other:App"}).label == "other:App"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"app": "my_app"}, "does not name an app"),
        ({"app": ""}, "object in .app. is '', not text"),
        ({"app": 3}, "app is 3, not a table"),
        ({"app": {"options": {}}}, "object in .app. is missing"),
        ({"app": {"object": "a:B", "lr": 1}}, "unknown key 'lr' in .app."),
        ({"app": {"object": "a:B", "options": {"lr": float("nan")}}}, "lr|options"),
        ({"app": "a:B", "model": {"name": "vgg5"}}, "model.name beside an app, a:B"),
        ({"app": "a:B", "data": {"name": "mnist"}}, "data beside an app"),
        ({"app": "a:B", "training": {"batch": 3}}, "training.batch beside an app"),
        ({"app": "a:B", "training": {"compute": "1s"}}, "training.compute beside an app"),
        ({"model": {"tensors": []}}, "tensors in .model."),
        ({"model": {"tensors": [""]}}, "tensors in .model."),
        ({"model": {"tensors": 3}}, "tensors in .model. is 3"),
        ({"model": {"name": "payload:4KB", "tensors": "x"}}, "is always sent"),
    ],
)
def test_what_cannot_be(table: dict[str, Any], words: str) -> None:
    with pytest.raises((PlanError, ModelError), match=words) as caught:
        Plan.of(table)
    assert caught.value.hint


def test_another_app_is_another_experiment() -> None:
    plan = Plan.of({"app": OPTIONS, "model": {"tensors": "head.*"}})
    other = Plan.of({"app": {**OPTIONS, "options": {"lr": 0.2}}, "model": {"tensors": "head.*"}})
    assert any(said.startswith("app.options.lr") for said in plan.differences(other))
    assert plan.differences(Plan.of({"app": OPTIONS})) == ["model.tensors: ['head.*'], None"]


def test_clients_hear_which_app_it_is_and_load_none_because_of_it() -> None:
    plan = Plan.of({"app": OPTIONS, "model": {"tensors": "head.*"}, "job": {"seed": 4}})
    config = round_config(plan, 2, ["a", "b"]).table()
    assert config == {
        "round": 2, "rounds": 5, "clients": 4, "names": ["a", "b"], "seed": 4, "tensors": ["head.*"], "app": OPTIONS,
    }  # fmt: skip
    with pytest.raises(PlanError, match="trains the user's own app 'my_app:App'") as caught:
        PartyBuilder("a", data_root=None, threads=None).prepare(ReceivedConfig(config))
    assert "--app" in caught.value.hint


BENCH = """
[base]
app = "my_app:App"
[matrix]
"app.options.lr" = [0.1, 0.2]
app = ["one:App", {name = "two", object = "two:App", options = {deep = true}}]
"""


def test_an_app_is_an_axis_and_its_options_too() -> None:
    matrix = Matrix.of(BenchPlan.loads(BENCH))
    assert dict(matrix.axes) == {"app": ["one:App", "two"], "app.options.lr": ["0.1", "0.2"]}
    apps = [cell.plan.app for cell in matrix.cells]
    assert [(app.object, app.options) for app in apps if app is not None] == [
        ("one:App", {"lr": 0.1}),
        ("one:App", {"lr": 0.2}),
        ("two:App", {"deep": True, "lr": 0.1}),
        ("two:App", {"deep": True, "lr": 0.2}),
    ]
    fixed = Matrix.of(BenchPlan.loads('[base]\napp = "my_app:App"\n[matrix]\n"app.options.lr" = [1]\n'))
    assert fixed.cells[0].plan.label == "my_app:App"
    case = Matrix.of(BenchPlan.loads('[matrix]\ncase = [{name = "x", app = "a:B"}, {name = "y", model = "vgg8"}]\n'))
    assert [cell.plan.label for cell in case.cells] == ["a:B", "vgg8"]


def test_the_size_of_an_apps_updates_is_known_when_it_has_run() -> None:
    plan = Plan.of({"app": "a:B"})
    assert condition_of(plan, 4096).update_bytes == 4096
    with pytest.raises(ThalwegError, match="how large updates of a:B are"):
        condition_of(plan)
