"""The packages that a base installation lacks: which extra of thalweg brings each, and the error that says so."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from thalweg.errors import PackageError

#: Name of a package as it is imported -> the extra that brings it. ``pyproject.toml`` has the extras.
EXTRAS: Final[Mapping[str, str]] = {
    "flwr": "flower",
    "matplotlib": "report",
    "ml_dtypes": "torch",
    "mlflow": "trackers",
    "mlxtend": "data",
    "networkx": "report",
    "opentelemetry": "trackers",
    "peft": "lm",
    "pyarrow": "report",
    "ray": "ray",
    "sklearn": "data",
    "tensorboardX": "trackers",
    "torch": "torch",
    "torchvision": "torch",
    "trackio": "trackers",
    "transformers": "lm",
    "wandb": "trackers",
}


def has(package: str) -> bool:
    """Return whether a package is installed. It is not imported."""
    try:
        return find_spec(package) is not None
    except ValueError:  # it is imported, and has no specification
        return True


def hint(*packages: str) -> str:
    """Return what to do if packages of ``EXTRAS`` are missing."""
    return f"pip install 'thalweg[{','.join(sorted({EXTRAS[package] for package in packages}))}]'"


def require(what: str, *packages: str) -> None:
    """Raise PackageError if one of these packages of ``EXTRAS`` is missing.

    ``what`` names the feature that needs them, for the message: ``"thalweg bench"``.
    """
    missing = [package for package in packages if not has(package)]
    if missing:
        raise lacking(what, *missing)


def lacking(what: str, *packages: str) -> PackageError:
    """Return the error that ``what`` needs packages of ``EXTRAS`` that are missing."""
    named = (
        f"package {packages[0]}, which is" if len(packages) == 1 else f"packages {' and '.join(packages)}, which are"
    )
    return PackageError(f"{what} needs the {named} not installed", hint(*packages))


def of_import(error: BaseException) -> PackageError | None:
    """Return a failed import of a package of ``EXTRAS`` as an error with a hint; None for any other error."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return lacking("this", package) if package in EXTRAS and not has(package) else None
