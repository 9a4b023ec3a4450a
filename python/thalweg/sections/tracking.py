"""Where a job's figures go while it runs: trackers in words, as ``tensorboard:DIR`` or ``mlflow``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BeforeValidator

from thalweg.sections.marks import Words
from thalweg.ui.units import UnexpectedValueError

# The trackers, each with what may follow it after a colon.
TRACKERS: Final = {
    "tensorboard": "DIR",
    "wandb": "PROJECT",
    "mlflow": "URI",
    "trackio": "PROJECT",
    "otlp": "URL",
}
# Trackers that have no default place.
_PLACED: Final = frozenset({"tensorboard"})
FORM: Final = "one of tensorboard:DIR, wandb[:PROJECT], mlflow[:URI], trackio[:PROJECT] and otlp[:URL]"


@dataclass(frozen=True)
class Chosen:
    """A tracker in words, split at its first colon. Without ``where`` the tracker's own settings say where."""

    name: str
    where: str | None

    @classmethod
    def of(cls, words: str) -> Chosen:
        """Split the words of a tracker."""
        name, _, where = words.partition(":")
        return cls(name, where or None)


def _known(value: Any) -> Any:
    values = [value] if isinstance(value, str) else value
    for words in values if isinstance(values, list) else [values]:
        chosen = Chosen.of(words) if isinstance(words, str) else Chosen("", None)
        placed = chosen.where is not None or chosen.name not in _PLACED
        if chosen.name not in TRACKERS or not placed:
            raise UnexpectedValueError(words, FORM)
    return values


Trackers: TypeAlias = Annotated[list[str], BeforeValidator(_known), Words("list of trackers, or text")]
