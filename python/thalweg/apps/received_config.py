"""A round's config as a client received it. The server may be of another version, or anybody's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from thalweg.errors import PlanError
from thalweg.sections import AlgorithmSection

_HINT: Final = "Use the same version on both sides"


@dataclass(frozen=True, slots=True)
class ReceivedConfig:
    """``values`` has thalweg's own keys (``thalweg.job.common.parties.RoundConfig``) and those of the server's user.

    An app's ``train`` gets all of them. The properties are thalweg's own values, checked.
    """

    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def round(self) -> int:
        """The round's number; 0 if the server does not say it."""
        number = self.values.get("round")
        return number if isinstance(number, int) else 0

    @property
    def evaluate(self) -> bool:
        """Whether each client evaluates the model that it has trained."""
        return self.values.get("evaluate") is True

    @property
    def names(self) -> list[str]:
        """The clients' names in the order of their places. Raises PlanError if the server does not say them."""
        names = self.values.get("names")
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise PlanError("the server does not say which clients there are", _HINT)
        return names

    @property
    def tensors(self) -> list[str] | None:
        """The patterns of the tensors that travel; None for all. Raises PlanError if they are not strings."""
        words = self.values.get("tensors")
        if words is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise PlanError(f"the server says tensors = {words!r}", _HINT)
        return words

    @property
    def app(self) -> Mapping[str, object] | None:
        """The name and the options of the server's own app; None if the job trains a known model."""
        return self.section("app") if "app" in self.values else None

    @property
    def algorithm(self) -> tuple[str, Mapping[str, float | bool | None]]:
        """The name and the settings of an algorithm of which clients do a part; else fedavg. Raises PlanError."""
        table = self.section("algorithm")
        if not table:
            return "fedavg", {}
        try:
            section = AlgorithmSection.model_validate(dict(table))
        except ValidationError as error:
            raise PlanError(f"the server says algorithm = {table!r}", _HINT) from error
        return section.name, section.model_dump(exclude={"name"}, exclude_none=True)

    def section(self, name: str) -> Mapping[str, object]:
        """Return a section with the keys of the plan's section of this name; an empty one if there is none."""
        found = self.values.get(name)
        return found if isinstance(found, Mapping) else {}

    def table(self) -> dict[str, object]:
        """Return all values, as they were received."""
        return dict(self.values)
