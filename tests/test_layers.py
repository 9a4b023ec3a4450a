"""Packages of thalweg import only packages of lower layers, as ARCHITECTURE.md lists them; so there is no cycle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "python" / "thalweg"
# The compiled core is below all layers. The root module and the program only import and call others.
CORE: Final = "_core"
# The name that the page uses for all modules beside the packages, except MODULES.
API: Final = "api"
MODULES: Final = ("bounded_json", "errors", "extras", "feedback", "tasks", "training_progress", "wire")


def layers() -> list[list[str]]:
    """The layers of ARCHITECTURE.md, top first."""
    block = re.search(r"```text layers\n(.*?)```", (ROOT / "ARCHITECTURE.md").read_text(), re.DOTALL)
    assert block is not None
    return [line.split() for line in block[1].splitlines()]


def parts() -> list[str]:
    """Names of the packages, and of the modules beside them."""
    return sorted(
        path.stem
        for path in PACKAGE.iterdir()
        if (path / "__init__.py").is_file() or (path.suffix == ".py" and not path.stem.startswith("__"))
    )


def imported(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and package of each import of thalweg, including imports in functions and imports for types only."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        assert getattr(node, "level", 0) == 0, "imports are absolute"
        below = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            root, _, rest = f"{below}{alias.name}".partition(".")
            if root == "thalweg" and rest:
                yield node.lineno, rest.partition(".")[0]


def heights() -> dict[str, int]:
    return {name: height for height, layer in enumerate(reversed(layers())) for name in layer}


def height(part: str) -> int:
    """The layer of a package, 0 for the lowest."""
    layers_by_name = heights()
    is_api = part not in layers_by_name and (PACKAGE / f"{part}.py").is_file()
    # A name that only the root module has is above all layers.
    return layers_by_name.get(API if is_api else part, len(layers_by_name))


def faults(part: str, text: str) -> list[str]:
    """Yield the imports in a package's file that break the rule."""
    outside = ((line, other) for line, other in imported(text) if other not in (part, CORE))
    return [f"line {line}: {part} imports {other}" for line, other in outside if height(other) >= height(part)]


def test_every_package_has_one_layer() -> None:
    named = [name for layer in layers() for name in layer]
    packages = [name for name in parts() if (PACKAGE / name).is_dir()]
    assert sorted(named) == sorted([*packages, *MODULES, API]), "list a new package in ARCHITECTURE.md"


@pytest.mark.parametrize("part", parts())
def test_imports_point_downwards(part: str) -> None:
    files = sorted((PACKAGE / part).rglob("*.py")) if (PACKAGE / part).is_dir() else [PACKAGE / f"{part}.py"]
    all_faults = [f"{path.relative_to(ROOT)}, {fault}" for path in files for fault in faults(part, path.read_text())]
    assert all_faults == []


@pytest.mark.parametrize(
    "text",
    [
        "from thalweg.job import run",
        "from thalweg import job",
        "import thalweg.job.run",
        "def later():\n    from thalweg.job.run import run",
        "if TYPE_CHECKING:\n    from thalweg.job.star.host import Result",
        "from thalweg.ui import units",
        "from thalweg import api",
        "from thalweg import Plan",
    ],
)
def test_what_points_upwards_or_sideways_is_found(text: str) -> None:
    assert len(faults("machine", text)) == 1


@pytest.mark.parametrize("text", ["from thalweg import _core", "from thalweg.machine import grace", "import thalweg"])
def test_what_lies_below_or_within_is_allowed(text: str) -> None:
    assert faults("machine", text) == []
