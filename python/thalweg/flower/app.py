"""Reads the folder of a Flower app: the settings in its pyproject.toml, and its ServerApp and ClientApp."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from thalweg.errors import AppError, PlanError
from thalweg.sections import toml
from thalweg.wire import Table

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

#: A value of an app's configuration, as Flower allows them, and a configuration with its keys joined by dots.
ConfigValue: TypeAlias = bool | int | float | str
Config: TypeAlias = dict[str, ConfigValue]

FILE: Final = "pyproject.toml"
LARGEST_FILE: Final = 1 << 20
#: A pair of ``--run-config`` or ``--node-config``: a key, and a value in TOML's syntax.
_PAIR: Final = re.compile(r"""\s*([\w.-]+)\s*=\s*("(?:[^"\\]|\\.)*"|'[^']*'|\[[^\]]*\]|[^\s"'\[]\S*)(?=\s|$)""")
#: The name at the beginning of a requirement such as ``torch>=2.4``.
_PACKAGE: Final = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class AppFolder:
    """A Flower app. ``server`` and ``client`` are ``module:object``; ``nodes`` is the size of its federation.

    ``packages`` are the names of the packages that it says it depends on.
    """

    path: Path
    server: str
    client: str
    config: Mapping[str, ConfigValue]
    nodes: int | None
    packages: frozenset[str] = frozenset()

    def run_config(self, overrides: Mapping[str, ConfigValue]) -> Config:
        """Return the app's configuration with the values of ``overrides``. Raises PlanError for a key that it lacks."""
        for key in overrides:
            if key not in self.config:
                known = ", ".join(sorted(self.config)) or "none"
                raise PlanError(f"the app {self.path} has no run configuration {key!r}", f"It has: {known}")
        return {**self.config, **overrides}

    def load_server(self) -> ServerApp:
        """Import the ServerApp. Raises AppError."""
        from flwr.serverapp import ServerApp

        server_app: ServerApp = _checked(self._load(self.server), ServerApp, self.server)
        return server_app

    def load_client(self) -> ClientApp:
        """Import the ClientApp. Raises AppError."""
        from flwr.clientapp import ClientApp

        client_app: ClientApp = _checked(self._load(self.client), ClientApp, self.client)
        return client_app

    def _load(self, reference: str) -> Any:
        folder = str(self.path.resolve())
        if folder not in sys.path:
            sys.path.insert(0, folder)
            importlib.invalidate_caches()
        module, _, attributes = reference.partition(":")
        try:
            value: Any = importlib.import_module(module)
            for attribute in attributes.split("."):
                value = getattr(value, attribute)
        except (Exception, SystemExit) as error:
            raise AppError(
                f"{reference} of the app {self.path} cannot be imported: {type(error).__name__}: {error}",
                "Correct the app, or install what it needs; the traceback is above",
            ) from error
        return value


def _checked(value: Any, kind: type[Any], reference: str) -> Any:
    if not isinstance(value, kind):
        raise AppError(
            f"{reference} is a {type(value).__name__}, not a {kind.__name__}",
            f"Correct [tool.flwr.app.components] in its {FILE}",
        )
    return value


def read(path: Path) -> AppFolder:
    """Read a Flower app's settings from its folder. Raises PlanError if the folder is not a Flower app."""
    file = path / FILE
    hint = "Name the folder of a Flower app, which has a pyproject.toml with [tool.flwr.app]"
    try:
        with file.open("rb") as stream:
            text = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise PlanError(f"cannot read {file}: {error.strerror}", hint) from error
    if len(text) > LARGEST_FILE:
        raise PlanError(f"{file} has more than {LARGEST_FILE} bytes", hint)
    table = toml.loads(text.decode(errors="replace"), str(file))
    flower = _section(table, "tool", "flwr")
    components = _section(flower, "app", "components")
    references = [components.get(name) for name in ("serverapp", "clientapp")]
    server, client = (
        one if isinstance(one, str) and re.fullmatch(r"[\w.]+:[\w.]+", one) else None for one in references
    )
    if server is None or client is None:
        raise PlanError(f"{file} does not say where its ServerApp and ClientApp are, as module:object", hint)
    config = dict(_flat(_section(flower, "app", "config")))
    return AppFolder(path, server, client, config, _nodes(_section(flower, "federations")), _packages(table))


def pairs(text: str, what: str) -> Config:
    """Parse pairs such as ``"num-server-rounds=3 name='anna'"``, whose values are TOML. Raises PlanError.

    ``what`` names the text in errors.
    """
    lines, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None:
            raise PlanError(
                f"{what} is {text!r}, which cannot be read from {text[at:].strip()!r} on",
                "Write key=value pairs with spaces between them, and text in quotes: \"rounds=3 name='anna'\"",
            )
        lines.append(f"{match[1]} = {match[2]}")
        at = match.end()
    return dict(_flat(toml.loads("\n".join(lines), what)))


def _packages(table: Table) -> frozenset[str]:
    needs = _section(table, "project").get("dependencies")
    found = (_PACKAGE.match(need) for need in needs if isinstance(need, str)) if isinstance(needs, list) else ()
    return frozenset(one[0].lower() for one in found if one is not None)


def _section(table: object, *names: str) -> Table:
    for name in names:
        table = table.get(name) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else {}


def _nodes(federations: Table) -> int | None:
    """Return the number of nodes of the default federation, or of the only one; None if it is not given."""
    named = {name: table for name, table in federations.items() if isinstance(table, dict)}
    default = federations.get("default")
    chosen = named.get(default) if isinstance(default, str) else None
    if chosen is None and len(named) == 1:
        chosen = next(iter(named.values()))
    nodes = _section(chosen, "options").get("num-supernodes")
    return nodes if isinstance(nodes, int) and not isinstance(nodes, bool) and nodes > 0 else None


def _flat(table: Table, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables with their keys joined by dots, in the form that Flower gives to apps."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
