from __future__ import annotations

import pickle
from dataclasses import asdict

import pytest

from thalweg.errors import CoreError, DataError, LinkError, PlanError, RecordError
from thalweg.ui.explain import exit_code, explain, explained


def test_cause_and_hint() -> None:
    assert explain(PlanError("it is bad", "make it good")) == ("it is bad", "make it good")
    error = CoreError("127.0.0.1:1: in use", "choose another port", "inuse", "listen")
    assert explain(error) == ("listen: 127.0.0.1:1: in use", "choose another port")
    assert str(error) == "listen: 127.0.0.1:1: in use; choose another port"
    cause, hint = explain(CoreError("nobody answers", None, "unreachable", "connect"))
    assert cause == "connect: nobody answers"
    assert hint.startswith("Start the server first")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PlanError("a", "b"), 2),
        (DataError("a", "b"), 2),
        (CoreError("a", "b", "unsupported"), 2),
        (CoreError("a", "b", "inuse"), 1),
        (RecordError("a", "b"), 1),
        (LinkError("a", "b"), 1),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    assert exit_code(error) == code


def test_an_error_has_the_same_fields_after_another_process() -> None:
    error = CoreError("nobody answers", None, "unreachable", "connect", retry=True)
    fields = {
        "kind": "unreachable",
        "operation": "connect",
        "cause": "nobody answers",
        "hint": "Start the server first, or check the address",
        "retry": True,
    }
    assert asdict(explained(error)) == fields
    back = pickle.loads(pickle.dumps(error))  # noqa: S301 - the test's own
    assert (asdict(explained(back)), str(back)) == (fields, str(error))


def test_a_semicolon_in_a_cause_is_no_hint() -> None:
    assert explain(CoreError("a; b", None, "refused"))[0] == "a; b"
