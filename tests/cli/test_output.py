"""With ``--json`` standard output has exactly one JSON document, even if other code prints there."""

from __future__ import annotations

import json
import os
import sys

import pytest

from thalweg.errors import PlanError
from thalweg.ui.output import output


def test_what_libraries_write_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with output(as_json=True) as emit:
        sys.stdout.write("from Python\n")
        os.write(1, b"from C\n")
        emit({"a": 1})
    said = capfd.readouterr()
    assert json.loads(said.out) == {"a": 1}
    assert "from Python" in said.err
    assert "from C" in said.err


def test_an_error_is_one_document_too(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with output(as_json=True) as emit:
            emit({"a": 1})
            raise PlanError("it is bad", "make it good")

    with pytest.raises(PlanError):
        fail()
    assert json.loads(capfd.readouterr().out) == {
        "error": {"cause": "it is bad", "hint": "make it good", "kind": "plan", "operation": "", "retry": False}
    }


def test_for_people_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with output(as_json=False) as emit:
        emit({"a": 1})
        sys.stdout.write("hello")
    assert capfd.readouterr().out == "hello"
