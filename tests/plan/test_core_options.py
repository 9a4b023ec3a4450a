"""The keys of a plan and the core's options agree. The core lists its options and their values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from thalweg import _core
from thalweg.plan import Plan
from thalweg.plan.options import OF_TASKS
from thalweg.sections.marks import Key, keys

# Options of the core that no single key of a plan sets: trust, the job's number, options that follow from several keys
# (workers of a tree, its nodes' sums, and when these accept updates), the emulated network, and the time limit of an
# attempt to connect (`thalweg forward`).
OWN = {
    "": {"transport", "layers", "issuer", "token", "revoked", "job", "workers", "sums", "withhold"},
    "transport": {"tls", "login", "connect_timeout_ms"},
    "layers": {"emulate"},
}
# The same for a client: the options that only servers have, how long it tries to connect, whether it is a node of a
# tree, and where it keeps what compression has left out.
CLIENTS = {"transport", "layers", "token", "seed", "timeout", "outage", "tree", "residual"}
NEVER = "never"
URL = "memory://never"


def refusal(options: dict[str, Any], *, client: bool = False) -> str:
    """Return the core's error for options that it does not accept."""
    arena = _core.Arena(_core.Layout([("w", "F32", [4])]))
    text = json.dumps(options)
    make = (lambda: _core.Client(URL, "a", text, arena)) if client else (lambda: _core.Server(arena, URL, text))
    with pytest.raises(_core.CoreError) as caught:
        make()
    return str(caught.value)


def expected(options: dict[str, Any], *, client: bool = False) -> set[str]:
    """Return what the core's error lists as accepted: names of options, or values of one option."""
    _, accepted, rest = refusal(options, client=client).partition("expected ")
    if accepted:
        return set(re.findall("`([^`]+)`", rest))
    return set(re.search(r"there are (.+) at line", refusal(options))[1].split(", "))  # type: ignore[index]


def at(path: str, value: object) -> dict[str, Any]:
    """Return options in which only this one is set."""
    for name in reversed(path.split(".") if path else []):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def placed(key: Key) -> str:
    assert key.core is not None
    return key.core.path or key.name


def section_of(key: Key) -> type[BaseModel] | None:
    """The section behind a key, if it is one."""
    kinds = (key.field.annotation, *get_args(key.field.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


IN_CORE = [key for key in keys(Plan) if key.core is not None]


@pytest.mark.parametrize("section", OWN)
def test_every_option_of_the_core_has_one_key(section: str) -> None:
    names = [placed(key).rpartition(".")[2] for key in IN_CORE if placed(key).rpartition(".")[0] == section]
    assert sorted(names) == sorted(expected(at(section, {NEVER: 1})) - OWN[section])


def test_every_option_of_a_client_has_one_key() -> None:
    assert expected({NEVER: 1}, client=True) == CLIENTS
    at_top = {placed(key).partition(".")[0] for key in IN_CORE if key.core is not None and key.core.client}
    assert at_top == CLIENTS - {"token", "timeout", "outage", "tree", "residual"}


@pytest.mark.parametrize("key", [key for key in IN_CORE if section_of(key)], ids=lambda key: key.path)
def test_a_section_has_the_keys_that_the_core_takes(key: Key) -> None:
    section = section_of(key)
    assert section is not None
    # Keys of other sections may set options of this one.
    others = {placed(other).rpartition(".")[2] for other in IN_CORE if placed(other).rpartition(".")[0] == placed(key)}
    assert set(section.model_fields) | others == expected(at(placed(key), {NEVER: 1}))


def choices() -> Iterator[tuple[str, set[str]]]:
    """Return each option of the core that has a fixed set of values, and the values that a plan accepts."""
    for key in IN_CORE:
        section = section_of(key)
        fields = (
            {placed(key): key.field}
            if section is None
            else {f"{placed(key)}.{name}": field for name, field in section.model_fields.items()}
        )
        for path, field in fields.items():
            for kind in (field.annotation, *get_args(field.annotation)):
                if get_origin(kind) is Literal:
                    yield path, set(get_args(kind))


@pytest.mark.parametrize(("path", "words"), list(choices()))
def test_a_plan_takes_the_words_that_the_core_takes(path: str, words: set[str]) -> None:
    assert expected(at(path, NEVER)) == words


def test_a_server_of_tasks_is_told_what_it_takes() -> None:
    with pytest.raises(_core.CoreError) as caught:
        _core.TaskServer(URL, json.dumps({NEVER: 1}))
    taken = set(re.findall("`([^`]+)`", str(caught.value).partition("expected ")[2]))
    assert taken & expected({NEVER: 1}) == OF_TASKS, "all that it has in common with a server of rounds"
