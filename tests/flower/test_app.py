"""Reading the settings of a Flower app from its folder and from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from thalweg.errors import AppError, PlanError
from thalweg.flower import app
from thalweg.flower.run import check, plan_of

APPS = Path(__file__).parent / "apps"
WHOLE = """
[tool.flwr.app.components]
serverapp = "demo.server:app"
clientapp = "demo.client:app"
[tool.flwr.app.config]
rounds = 3
model.layers.count = 2
[tool.flwr.federations]
default = "small"
[tool.flwr.federations.small]
options.num-supernodes = 3
[tool.flwr.federations.large]
options.num-supernodes = 30
"""


def folder(place: Path, text: str = WHOLE) -> Path:
    (place / "pyproject.toml").write_text(text)
    return place


def test_a_folder_says_what_it_is(tmp_path: Path) -> None:
    app_folder = app.read(folder(tmp_path))
    assert (app_folder.server, app_folder.client) == ("demo.server:app", "demo.client:app")
    assert app_folder.config == {"rounds": 3, "model.layers.count": 2}
    assert app_folder.nodes == 3
    assert app_folder.run_config({"rounds": 5})["rounds"] == 5
    with pytest.raises(PlanError, match="no run configuration 'epochs'"):
        app_folder.run_config({"epochs": 1})


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        (WHOLE.replace('default = "small"', ""), None),
        (WHOLE.replace('default = "small"', 'default = "other"'), None),
        (WHOLE.partition("[tool.flwr.federations.large]")[0].replace('default = "small"', ""), 3),
        (WHOLE.partition("[tool.flwr.federations]")[0], None),
        (WHOLE.replace("= 3\n[tool.flwr.federations.large]", '= "many"\n[tool.flwr.federations.large]'), None),
    ],
)
def test_the_number_of_nodes_is_that_of_the_chosen_federation(tmp_path: Path, text: str, nodes: int | None) -> None:
    assert app.read(folder(tmp_path, text)).nodes == nodes


@pytest.mark.parametrize("text", ["", "[tool]\nflwr = 1", WHOLE.replace(":app", ""), WHOLE.replace("demo.", "demo/")])
def test_what_is_no_flower_app_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(PlanError, match="does not say where its ServerApp and ClientApp are"):
        app.read(folder(tmp_path, text))
    with pytest.raises(PlanError, match="cannot read"):
        app.read(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("rounds=3", {"rounds": 3}),
        ("a=1 b=2.5  c=true", {"a": 1, "b": 2.5, "c": True}),
        ("name='anna b' other=\"x=y\"", {"name": "anna b", "other": "x=y"}),
        ("model.layers.count = 4", {"model.layers.count": 4}),
        ("sizes=[1, 2]", {"sizes": [1, 2]}),
        ("rate=1e-3", {"rate": 0.001}),
    ],
)
def test_pairs_are_read_as_toml(text: str, found: dict[str, object]) -> None:
    assert app.pairs(text, "--run-config") == found


@pytest.mark.parametrize("text", ["rounds", "rounds=", "=3", "a=1 b", "name=anna", "a='x", "a=1 a=2"])
def test_pairs_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match="--run-config"):
        app.pairs(text, "--run-config")


def test_the_command_line_overrides_the_apps_settings(tmp_path: Path) -> None:
    place = folder(tmp_path)
    plan = plan_of(place, {"job.seed": 5, "app.fold": "off", "transport.url": "grpc"}, ["rounds=7"])
    assert (plan.job.clients, plan.job.seed, plan.scheme) == (3, 5, "grpc")
    assert plan.app is not None
    assert (plan.app.object, plan.app.options, plan.app.fold) == (f"flower:{place}", {"rounds": 7}, "off")
    check(plan)
    assert plan_of(place, {"job.clients": 2}).job.clients == 2
    with pytest.raises(PlanError, match="--clients"):
        plan_of(folder(tmp_path, WHOLE.partition("[tool.flwr.federations]")[0]), {})


@pytest.mark.parametrize("reference", ["math:pi", "math:nothing", "no_such_module:app", "this:app.inner"])
def test_what_cannot_be_imported_is_the_apps_error(tmp_path: Path, reference: str) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    app_folder = app.read(folder(tmp_path, WHOLE.replace("demo.server:app", reference)))
    with pytest.raises(AppError, match=reference):
        app_folder.load_server()
