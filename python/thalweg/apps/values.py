"""Converts a user's values to JSON before they are sent: a round's config, a task's head, metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from thalweg.errors import PlanError


def encoded(what: str, value: object) -> str:
    """Return a value as JSON with finite numbers only. Scalars of NumPy and PyTorch become Python's numbers.

    ``what`` names the value in the error. Raises PlanError for a value that JSON cannot hold.
    """
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise PlanError(
            f"{what} is no JSON: {error}", "Use finite numbers, text, lists and dicts; send arrays as tensors"
        ) from None


def config_of(own: Mapping[str, object], user_config: Mapping[str, object] | None) -> str:
    """Return a round's config as JSON: thalweg's ``own`` keys, and those of the ``user_config``.

    Raises PlanError for a key that thalweg sets itself, and for a value that JSON cannot hold.
    """
    user_config = {} if user_config is None else user_config
    if not isinstance(user_config, Mapping):
        raise PlanError(f"config is {kind(user_config)}", "Give a dict")
    reserved = next((key for key in own if key in user_config), None)
    if reserved is not None:
        raise PlanError(
            f"config has the key {reserved!r}, which thalweg sets itself",
            f"Give it another name than {', '.join(own)}",
        )
    for key, value in user_config.items():
        encoded(f"config[{key!r}]", value)
    return encoded("config", {**own, **user_config})


def scalar(value: Any) -> Any:
    """Return Python's number for a scalar of another library, and anything else as it is."""
    if isinstance(value, (bool, int, float, str)):
        # Send only the value of a subclass of these types, such as numpy.float64.
        plain = next(kind for kind in (bool, int, float, str) if isinstance(value, kind))
        return plain(value)
    if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)):
        return value.item()
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def kind(value: object) -> str:
    """Return a description of a value's type, such as "a list", with its shape if it has one."""
    if value is None:
        return "nothing"
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" if shape is None else f"a {type(value).__name__} of shape {list(shape)}"


def _plain(value: object) -> object:
    """Return a value that JSON can hold in place of one that it cannot; for ``json.dumps``. Raises TypeError."""
    plain = scalar(value)
    if not isinstance(plain, (bool, int, float, str)):
        raise TypeError(f"it has {kind(value)}")
    return plain
