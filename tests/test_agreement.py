"""Facts about transports, models, data sets and versions agree in all places that state them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thalweg import data, models
from thalweg.sections import toml

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "transports.md"
# `memory` is a part of crates/transport itself: the reference implementation of the contract.
BUILT_IN = {"memory"}
# The crate that transports which move messages are made of. It is no transport itself.
LIBRARIES = {"messages"}


@pytest.fixture(scope="module")
def registry() -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "thalweg", "doctor", "--transports", "--json"]
    entries: list[dict[str, Any]] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return entries


def folders() -> set[str]:
    return {path.parent.name for path in (ROOT / "crates" / "transports").glob("*/Cargo.toml")} - LIBRARIES


def runtime() -> dict[str, Any]:
    return toml.loads((ROOT / "crates" / "runtime" / "Cargo.toml").read_text(), "crates/runtime/Cargo.toml")


def test_each_folder_is_in_the_registry_and_each_entry_has_a_folder(registry: list[dict[str, Any]]) -> None:
    assert {entry["name"] for entry in registry} == folders() | BUILT_IN


def test_each_folder_is_a_feature_of_the_runtime() -> None:
    features = runtime()["features"]
    assert set(features) - {"default", "baselines", "as-in-tests"} == folders()
    for name in folders():
        assert features[name] == [f"dep:thalweg-{name}"]
        assert runtime()["dependencies"][f"thalweg-{name}"]["optional"] is True
    assert set(features["default"]) == folders(), "a build has every transport unless it says otherwise"


def test_a_build_has_no_baselines_unless_it_says_so() -> None:
    """Every crate with the feature gets it from the runtime's feature, or from that of another crate."""
    files = ROOT.glob("crates/**/Cargo.toml")
    features = {path.parent.name: toml.loads(path.read_text(), str(path)).get("features", {}) for path in files}
    having = {name: set(each["baselines"]) for name, each in features.items() if "baselines" in each}
    assert not any("baselines" in each.get("default", []) for each in features.values())
    crates = {word.removeprefix("thalweg-").split("?")[0].split("/")[0] for each in having.values() for word in each}
    assert set(having) - {"py"} <= crates
    assert having["py"] == {"thalweg-runtime/baselines"}


def test_each_folder_is_a_member_of_the_workspace_and_named_alike() -> None:
    workspace = toml.loads((ROOT / "Cargo.toml").read_text(), "Cargo.toml")["workspace"]
    for name in folders() | LIBRARIES:
        assert f"crates/transports/{name}" in workspace["members"]
        manifest = toml.loads((ROOT / "crates" / "transports" / name / "Cargo.toml").read_text(), name)
        assert manifest["package"]["name"] == f"thalweg-{name}"


def test_each_transport_keeps_the_contract() -> None:
    tests = {"memory": ROOT / "crates" / "conformance" / "tests"}
    tests |= {name: ROOT / "crates" / "transports" / name / "tests" for name in folders()}
    for name, folder in tests.items():
        assert any("suite!(" in path.read_text() for path in folder.glob("*.rs")), name


def test_the_page_describes_each_transport_as_it_is(registry: list[dict[str, Any]]) -> None:
    text = PAGE.read_text()
    assert set(re.findall(r"^## ([a-z]+)$", text, re.MULTILINE)) >= {entry["name"] for entry in registry}
    head = next(line for line in text.splitlines() if line.startswith("| transport |"))
    names = [cell.strip().strip("`") for cell in head.strip("|").split("|")][1:]
    for entry in registry:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{entry['name']}` |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")][1:]
        said = {name: {"yes": True, "no": False}.get(cell, cell) for name, cell in zip(names, cells, strict=True)}
        assert said == {key: value if isinstance(value, bool) else str(value) for key, value in can(entry).items()}
    assert len([line for line in text.splitlines() if re.match(r"\| `[a-z]+` \| (yes|no) \|", line)]) == len(registry)


def can(entry: dict[str, Any]) -> dict[str, Any]:
    capabilities: dict[str, Any] = entry["capabilities"]
    return capabilities


def test_the_readme_names_every_transport(registry: list[dict[str, Any]]) -> None:
    there = (ROOT / "README.md").read_text().partition("## What there is")[2]
    (row,) = re.findall(r"^\| transports \| (.*?) \|", there, re.MULTILINE)
    assert {entry["name"] for entry in registry} <= set(re.findall(r"`([a-z]+)`", row))


def test_the_readme_leads_to_every_how_to() -> None:
    readme = (ROOT / "README.md").read_text()
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/how-to").glob("*.md")]
    assert [page for page in pages if f"]({page}" not in readme] == []


def test_the_life_of_an_update_names_files_that_exist() -> None:
    page = (ROOT / "docs/explanation/life-of-an-update.md").read_text()
    paths = set(re.findall(r"`((?:crates|python)/[\w/.-]+)`", page))
    assert len(paths) > 20
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def named(page: str, heading: str) -> list[str]:
    """Return the names in the first cells of the table below a heading of a page."""
    part = re.split(r"^## ", (ROOT / page).read_text(), flags=re.MULTILINE)
    (text,) = [section for section in part if section.startswith(f"{heading}\n")]
    return [name for cell in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(.*?)`", cell)]


def test_the_reference_names_every_model_and_its_size() -> None:
    names = named("docs/reference/plan.md", "Models")
    assert {name for name in names if "+" not in name and ":" not in name} == set(models.MODELS)
    text = (ROOT / "docs/reference/plan.md").read_text()
    counts = {
        spec.name: f"{spec.parameters:,}" for spec in models.MODELS.values() if spec.family != "torchvision_models"
    }
    assert [name for name, count in counts.items() if count not in text] == []


def test_the_reference_names_every_data_set() -> None:
    assert sorted(named("docs/reference/plan.md", "Data")) == sorted(data.DATASETS)


def test_the_documents_name_the_versions_that_are_needed_and_tested() -> None:
    readme, first = (ROOT / "README.md").read_text(), (ROOT / "docs/tutorial/first-run.md").read_text()
    project = toml.loads((ROOT / "pyproject.toml").read_text(), "pyproject.toml")["project"]
    package = toml.loads((ROOT / "Cargo.toml").read_text(), "Cargo.toml")["workspace"]["package"]
    for text in (readme, first):
        assert f"Python {project['requires-python'].removeprefix('>=')} or newer" in text
        assert f"Rust {package['rust-version']} or newer" in text
    assert f"thalweg {package['version'].rpartition('.')[0]} |" in readme
    (flower,) = re.findall(r"^flwr==(\d+\.\d+)", (ROOT / "requirements/dev.lock").read_text(), re.MULTILINE)
    assert f"[Flower](https://flower.ai) {flower} |" in readme
    assert f"to {flower} run" in (ROOT / "docs/reference/flower.md").read_text()
