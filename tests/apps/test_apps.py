"""Users' own apps: how they are found, and the errors if they are not."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg import apps
from thalweg.apps.received_config import ReceivedConfig
from thalweg.errors import AppError, DataError, PlanError

APP = """
import sys
LATE = "helper_of_app"

class Whole:
    def __init__(self, size=1):
        self.size = size
    def model(self): return {"w": __import__("numpy").zeros(self.size)}
    def train(self, model, data, config): return 1, {}
    class Inner:
        def model(self): return 2
        def train(self, model, data, config): return 1, {}

class Late(Whole):
    def model(self):
        import helper_of_app
        return helper_of_app.VALUE

def made(size=7): return Whole(size)
def broken(): raise ValueError("no\\nway")
ready = Whole()
number = 3

class Part:
    def model(self): return 1
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "some_app.py").write_text(APP)
    (tmp_path / "helper_of_app.py").write_text("VALUE = 5\n")
    (tmp_path / "wrong_app.py").write_text("def x(:\n")
    (tmp_path / "ending_app.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "needing_app.py").write_text("import nothing_of_that_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.endswith("_app"):
            del sys.modules[name]


@pytest.mark.parametrize("place", ["some_app", "some_app.py", "./some_app.py"])
def test_an_app_is_a_class_a_function_or_an_object(here: Path, place: str) -> None:
    assert apps.load(f"{place}:Whole").size == 1
    assert apps.load(f"{place}:Whole", {"size": 4}).size == 4
    assert apps.load(f"{place}:made", {"size": 2}).size == 2
    assert apps.load(f"{place}:ready").size == 1
    assert apps.load(f"{place}:Whole.Inner").model() == 2


def test_what_an_app_imports_later_is_found(here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert apps.load("../some_app.py:Late").model() == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("some_app", "does not name an app"),
        (":App", "does not name an app"),
        ("some_app:", "does not name an app"),
        ("nothing:App", "no module 'nothing'"),
        ("nothing.py:App", "there is no file"),
        ("some_app:Hwole", "it has no 'Hwole'"),
        ("some_app:Whole.Outer", "it has no 'Outer'"),
        ("some_app:Part", r"has no train\(\)"),
        ("some_app:number", r"has no model\(\)"),
        ("some_app:broken", "it raised ValueError: no way .*some_app.py"),
        ("wrong_app:App", "it raised SyntaxError"),
        ("wrong_app.py:App", "it raised SyntaxError"),
        ("ending_app:App", "it raised SystemExit: 3"),
        ("needing_app:App", "nothing_of_that_name"),
        ("json.py:App", "there is no file"),
    ],
)
def test_objects_that_are_no_apps_are_refused(here: Path, text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        apps.load(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("raised", "hint"),
    [
        ("name='torch.nn'", r"pip install 'thalweg\[torch\]'"),
        ("name='sklearn'", r"pip install 'thalweg\[data\]'"),
        ("name='xgboost'", "Install xgboost"),
        ("", "Install what it imports"),
    ],
)
def test_a_package_that_an_app_lacks_is_named_as_it_is_installed(here: Path, raised: str, hint: str) -> None:
    (here / "lacking_app.py").write_text(f"raise ModuleNotFoundError('No module', {raised})\n")
    with pytest.raises(PlanError, match="No module") as caught:
        apps.load("lacking_app:App")
    assert re.fullmatch(hint, caught.value.hint)


def test_the_nearest_name_is_said(here: Path) -> None:
    with pytest.raises(PlanError) as caught:
        apps.load("some_app:Hwole")
    assert "'Whole'" in caught.value.hint


def test_a_flower_app_says_which_commands_run_it() -> None:
    with pytest.raises(PlanError, match="is a Flower app") as caught:
        apps.load("flower:my/app")
    assert "thalweg flower run my/app" in caught.value.hint


def test_options_are_for_what_can_be_called(here: Path) -> None:
    with pytest.raises(PlanError, match="takes no options"):
        apps.load("some_app:ready", {"size": 1})
    with pytest.raises(PlanError, match=r"Whole\(width=3\).*TypeError"):
        apps.load("some_app:Whole", {"width": 3})


def test_a_file_with_the_name_of_a_loaded_module_is_refused(here: Path) -> None:
    (here / "json.py").write_text(APP)
    with pytest.raises(PlanError, match="name of a module that is loaded"):
        apps.load("json.py:Whole")


def test_facts_say_which_file_it_was(here: Path) -> None:
    apps.load("some_app.py:Whole", {"size": 2})
    facts = apps.facts("some_app.py:Whole", {"size": 2})
    assert facts["object"] == "some_app.py:Whole"
    assert facts["options"] == {"size": 2}
    assert facts["file"] == str(here / "some_app.py")
    assert len(str(facts["sha256"])) == 64


def test_a_changed_app_file_is_reported(here: Path) -> None:
    apps.load("some_app.py:Whole")
    before = apps.facts("some_app.py:Whole", None)
    assert apps.changed(before, before) is None
    assert apps.changed(None, before) is None
    (here / "some_app.py").write_text(APP + "# more\n")
    told = apps.changed(before, apps.facts("some_app.py:Whole", None))
    assert told is not None
    assert "some_app.py has changed" in told


class Hooks:
    def client_data(self, **part: Any) -> dict[str, Any]:
        return part

    def train_data(self) -> str:
        return "all"


def test_a_clients_data_follow_from_its_place() -> None:
    config = ReceivedConfig({"names": ["a", "b"], "clients": 2, "seed": 7})
    part = apps.part_of("b", config)
    assert apps.client_data(Hooks(), part) == {"name": "b", "index": 1, "clients": 2, "seed": 7}
    with pytest.raises(PlanError, match="which clients there are"):
        apps.client_data(Hooks(), None)


@pytest.mark.parametrize(
    "change", [{"names": None}, {"clients": 0}, {"clients": "2"}, {"seed": -1}, {"seed": None}, {"names": "ab"}]
)
def test_a_config_without_the_clients_names_gives_no_part(change: dict[str, Any]) -> None:
    assert apps.part_of("b", ReceivedConfig({"names": ["a", "b"], "clients": 2, "seed": 7, **change})) is None


def test_data_may_have_no_place_and_no_hook() -> None:
    class Plain:
        def train_data(self) -> str:
            return "all"

    assert apps.client_data(Plain(), None) == "all"
    assert apps.client_data(object(), None) is None


def test_what_a_hook_raises_names_the_hook_and_the_line() -> None:
    def broken() -> None:
        raise KeyError("where")

    with pytest.raises(
        AppError, match=r"model\(\) of the app raised KeyError: 'where' \(.*test_apps\.py:\d+\)"
    ) as caught:
        apps.ask(broken, "model()")
    assert isinstance(caught.value.__cause__, KeyError)

    def missing() -> None:
        raise DataError("no file", "Get it")

    with pytest.raises(DataError, match="no file"):
        apps.ask(missing, "test_data()")


@pytest.mark.parametrize("returned", [(3, {}), (np.int64(3), {"loss": 1.0}), (np.array(3), [("loss", 1.0)]), [3, {}]])
def test_what_train_returns(returned: Any) -> None:
    assert apps.trained(returned)[0] == 3


@pytest.mark.parametrize(
    "returned", [None, 3, (3,), (3, None), (-1, {}), (1.5, {}), ("3", {}), (3, 4), (3, {}, 1), ("x" * 99, {})]
)
def test_what_train_must_not_return(returned: Any) -> None:
    with pytest.raises(AppError, match=r"train\(\) of the app returned") as caught:
        apps.trained(returned)
    assert "samples" in caught.value.hint
    assert len(caught.value.cause) < 130


def test_seeds_reach_all_generators() -> None:
    import torch

    def draws() -> list[float]:
        return [random.random(), float(np.random.random()), float(torch.rand(1))]

    apps.seed_all(1, 2, 3)
    first = draws()
    apps.seed_all(1, 2, 4)
    assert all(one != other for one, other in zip(first, draws(), strict=True))
    apps.seed_all(1, 2, 3)
    assert draws() == first
