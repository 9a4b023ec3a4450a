"""Finds which data sets an app loads by ``flwr_datasets`` and ``datasets``. It reads the source and runs nothing."""

from __future__ import annotations

import ast
import os
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from thalweg.errors import PlanError
from thalweg.flower.app import ConfigValue, read

# Callable -> the argument that names the data set, the one for its configuration, and whether both may be positional.
CALLS: Final = {
    "flwr_datasets.FederatedDataset": ("dataset", "subset", False),
    "datasets.load_dataset": ("path", "name", True),
}
FILES_MAX: Final = 10_000
BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True)
class DatasetCall:
    """One call that loads a data set."""

    #: The data set's name; None if it cannot be found in the source.
    name: str | None
    #: Which configuration of the data set; None for the default one.
    subset: str | None
    #: ``file:line`` within the app's folder.
    where: str


def dataset_calls(app: Path) -> list[DatasetCall]:
    """Return the calls of ``FederatedDataset`` and ``load_dataset`` in an app's folder, by file and line.

    A data set's name is found if it is a string, a constant of a module, or a value of ``context.run_config``, which is
    taken from ``pyproject.toml``. Nothing of the app is run. Raises PlanError if ``app`` is not the folder of an app,
    or one of its files cannot be read.
    """
    config = read(app).config
    sources = {_module(path.relative_to(app)): _Source.read(path, app) for path in _files(app)}
    return [one for source in sources.values() for one in source.calls(sources, config)]


@dataclass(frozen=True)
class _Source:
    """One source file: its syntax tree, its imports and its constants."""

    where: str
    tree: ast.Module
    #: Name in this file -> full name of the imported object.
    imported: dict[str, str] = field(default_factory=dict)
    #: Name in this file -> its text; None if it is assigned more than once, or is not a text.
    constants: dict[str, str | None] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, app: Path) -> _Source:
        where = path.relative_to(app).as_posix()
        try:
            if path.stat().st_size > BYTES_MAX:
                raise PlanError(f"{path} has more than {BYTES_MAX} bytes", "Give the folder of the app alone")
            with tokenize.open(path) as stream:
                tree = ast.parse(stream.read(), where)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise PlanError(f"cannot read {path}: {error}", "Correct the file") from error
        source = cls(where, tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                source.imported.update(
                    (one.asname or one.name.partition(".")[0], one.name if one.asname else one.name.partition(".")[0])
                    for one in node.names
                )
            elif isinstance(node, ast.ImportFrom) and node.module:
                source.imported.update((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                source.note(node)
        return source

    def note(self, node: ast.Assign | ast.AnnAssign) -> None:
        """Keep the text that an assignment gives to its names."""
        text = node.value.value if isinstance(node.value, ast.Constant) else None
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                known = isinstance(text, str) and target.id not in self.constants
                self.constants[target.id] = text if known and isinstance(text, str) else None

    def full_name(self, node: ast.expr) -> str | None:
        """Return the full name, ``package.name``, of an expression's import; None if it has none."""
        if isinstance(node, ast.Name):
            return self.imported.get(node.id)
        if isinstance(node, ast.Attribute):
            below = self.full_name(node.value)
            return None if below is None else f"{below}.{node.attr}"
        return None

    def calls(self, sources: Mapping[str, _Source], config: Mapping[str, ConfigValue]) -> Iterator[DatasetCall]:
        """Yield the calls in this file that load a data set, in order of their lines."""
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
            call = CALLS.get(self.full_name(node.func) or "")
            if call is None:
                continue
            name_key, subset_key, positional = call
            keywords = {one.arg: one.value for one in node.keywords if one.arg is not None}
            if positional:
                keywords |= dict(zip((name_key, subset_key), node.args, strict=False))
            name, subset = keywords.get(name_key), keywords.get(subset_key)
            yield DatasetCall(
                None if name is None else self.text(name, sources, config),
                None if subset is None else self.text(subset, sources, config),
                f"{self.where}:{node.lineno}",
            )

    def text(self, node: ast.expr, sources: Mapping[str, _Source], config: Mapping[str, ConfigValue]) -> str | None:
        """Return the string that is an expression's value, or None if the source does not show it."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "run_config"
        ):
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            value = config.get(key) if isinstance(key, str) else None
            return value if isinstance(value, str) else None
        if isinstance(node, ast.Name) and node.id in self.constants:
            return self.constants[node.id]
        module, _, name = (self.full_name(node) or "").rpartition(".")
        return sources[module].constants.get(name) if module in sources else None


def _files(app: Path) -> Iterator[Path]:
    """Yield the Python files of an app, sorted, without those of virtual environments and hidden folders in it."""
    count = 0
    for folder, folders, files in os.walk(app):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name != "__pycache__" and not (Path(folder) / name / "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            if name.endswith(".py"):
                count += 1
                if count > FILES_MAX:
                    raise PlanError(f"{app} has more than {FILES_MAX} Python files", "Give the folder of the app alone")
                yield Path(folder) / name


def _module(path: Path) -> str:
    """Return the module name of an app's file. ``path`` is relative to the app's folder."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
