"""A bench plan: a TOML file that says which jobs are compared, and how often each is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, ValidationError

from thalweg.errors import PlanError
from thalweg.plan import read
from thalweg.sections import Seconds, Section, Text, explain, toml
from thalweg.sections.marks import Words
from thalweg.wire import Table

Accounting: TypeAlias = Literal["measured", "fedcomm", "round"]


class BenchPlan(Section):
    """A matrix of jobs."""

    repetitions: int = Field(3, ge=1, le=1000, description="times that each cell is run")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the order in which cells are run")
    accounting: Accounting | None = Field(
        None,
        description="which time figures compare: measured while updates are under way, fedcomm, as FedComm's code "
        "counts communication, or round, the whole round; the default is round beside other systems, else measured",
    )
    impossible: Literal["refuse", "skip"] = Field(
        "refuse", description="what to do if a cell cannot be: refuse the whole plan, or skip the cell and say why"
    )
    limit: Seconds | None = Field(None, description="seconds after which a run is ended and counts as failed")
    folder: Text = Field("bench", description="folder that gets a new folder for each bench")
    base: Annotated[dict[str, object], Words("table")] = Field(
        default_factory=dict, description="a plan, as of `thalweg run`, that all cells share"
    )
    matrix: Annotated[dict[str, object], Words("table of lists")] = Field(
        default_factory=dict, description="axes: a plan's keys, or short names, each with the values to take"
    )

    @classmethod
    def of(cls, table: Table, source: str = "the bench plan") -> BenchPlan:
        """Return the bench plan in a table. ``source`` names it in errors. Raises PlanError."""
        try:
            return cls.model_validate(dict(table))
        except ValidationError as error:
            raise explain.plan_error(error, cls, source) from None

    @classmethod
    def loads(cls, text: str, source: str = "the bench plan") -> BenchPlan:
        """Return the bench plan in TOML text. Raises PlanError."""
        return cls.of(toml.loads(text, source), source)

    @classmethod
    def load(cls, path: Path) -> BenchPlan:
        """Return the bench plan in a file. Raises PlanError."""
        return cls.of(read(path), str(path))

    def with_repetitions(self, repetitions: int | None) -> BenchPlan:
        """Return this plan with another number of repetitions; None changes nothing. Raises PlanError."""
        if repetitions is None:
            return self
        return BenchPlan.of({**self.model_dump(exclude_unset=True), "repetitions": repetitions}, "the command line")

    def to_toml(self) -> str:
        """Return the bench plan as TOML. Loading that gives an equal bench plan.

        Raises PlanError for values that no plan has, such as dates.
        """
        try:
            return toml.dumps(self.model_dump(exclude_none=True)).replace("\n[", "\n\n[", 1)
        except TypeError as error:
            raise PlanError(f"the bench plan has a value of a wrong kind: {error}", "Give text or a number") from error
