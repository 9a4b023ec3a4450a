from __future__ import annotations

import pytest

from thalweg import _core
from thalweg.errors import DataError, LinkError, PlanError, RecordError
from thalweg.ui.explain import exit_code, explain


def core_error(kind: str, text: str) -> Exception:
    error = _core.CoreError(text)
    error.kind = kind
    return error


def test_cause_and_hint() -> None:
    assert explain(PlanError("it is bad", "make it good")) == ("it is bad", "make it good")
    error = core_error("inuse", "listen: 127.0.0.1:1: in use; choose another port")
    assert explain(error) == ("listen: 127.0.0.1:1: in use", "choose another port")
    cause, hint = explain(core_error("unreachable", "connect: nobody answers"))
    assert cause == "connect: nobody answers"
    assert hint.startswith("Start the server first")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PlanError("a", "b"), 2),
        (DataError("a", "b"), 2),
        (core_error("unsupported", "a; b"), 2),
        (core_error("inuse", "a; b"), 1),
        (RecordError("a", "b"), 1),
        (LinkError("a", "b"), 1),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    assert exit_code(error) == code
