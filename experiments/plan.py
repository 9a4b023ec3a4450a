"""An experiment: one matrix of jobs, run in several modes and at several scales.

``plan.toml`` of a figure has ``title``, ``source`` and ``quantity``, and ``base`` and ``matrix`` as in a bench plan.
Each of its ``modes`` and ``scales`` has the differences from these: ``about``, ``repetitions``, ``limit``, ``base``
(merged over the shared one), ``values`` (the meaning of an axis's label in this mode), ``matrix`` (the labels of an
axis that are run) and ``without`` (cells that are not run, such as those that would take hours). ``plot`` says how the
figure is drawn. ``common`` names a file in the study's folder over which the plan is merged; that file may name
another.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from thalweg.bench import BenchPlan, Matrix
from thalweg.bench.axes import IS, NAME, axes, named
from thalweg.errors import PlanError
from thalweg.plan import read
from thalweg.sections import Seconds, Section

ROOT: Final = Path(__file__).parent
FULL: Final = "full"


Kind = Literal["bars", "lines", "flows", "timelines", "accuracy", "boxes", "learning"]
# For each kind of figure, its required keys and its optional keys.
_KEYS: Final[Mapping[Kind, tuple[set[str], set[str]]]] = {
    "bars": ({"along"}, {"panels"}),
    "lines": ({"along"}, set()),
    "flows": (set(), set()),
    "timelines": (set(), set()),
    "accuracy": ({"panels"}, set()),
    "boxes": (set(), {"panels"}),
    "learning": (set(), {"panels", "graph"}),
}


class Plot(Section):
    """How a figure is drawn."""

    kind: Kind = Field(description="how: see the functions of these names in plots.py")
    along: str | None = Field(None, description="axis of the matrix whose labels are along the x-axis")
    panels: str | None = Field(None, description="axis of the matrix that has a panel for each label")
    graph: str | None = Field(None, description="case whose graph is drawn too, with the nodes that finished last")
    last: str | None = Field(None, description="axis of the matrix of which only the last label is drawn")

    @model_validator(mode="after")
    def _keys_of_its_kind(self) -> Plot:
        needed, optional = _KEYS[self.kind]
        present = {key for key in ("along", "panels", "graph") if getattr(self, key) is not None}
        if missing := sorted(needed - present):
            raise ValueError(f"a plot of kind {self.kind!r} needs {' and '.join(missing)}")
        if unused := sorted(present - needed - optional):
            raise ValueError(f"a plot of kind {self.kind!r} has no {' or '.join(unused)}")
        return self


class Variation(Section):
    """The changes of a mode or a scale to the plan."""

    about: str = Field(description="what it is, in a sentence")
    accounting: Literal["measured", "fedcomm"] | None = Field(None, description="which communication time counts")
    repetitions: int | None = Field(None, ge=1, description="times that each cell is run")
    limit: Seconds | None = Field(None, description="seconds after which a run is ended and counts as failed")
    base: dict[str, Any] = Field(default_factory=dict, description="keys of a plan that go over the shared ones")
    values: dict[str, dict[str, Any]] = Field(default_factory=dict, description="by axis and label: the value meant")
    matrix: dict[str, Any] = Field(default_factory=dict, description="by axis: the labels that stay")
    without: list[dict[str, str]] = Field(default_factory=list, description="cells that are not run: label by axis")


class Experiment(Section):
    """A figure's plan."""

    title: str = Field(description="what is measured")
    source: str = Field(description="paper, section and figure")
    quantity: Literal["communication", "accuracy", "goodput", "iterations", "aggregation"] = Field(
        description="what the figure shows"
    )
    plot: Plot = Field(description="how the figure is drawn")
    watch: bool = Field(False, description="whether the kernel's senders are looked at meanwhile")
    rivals: int = Field(0, ge=0, le=64, description="other TCP streams from client-1, if senders are watched")
    only: str | None = Field(None, description="the one mode of the shared ones that it is run in")
    kept: str = Field(FULL, description="scale whose numbers the study's RESULTS.md shows")
    base: dict[str, Any] = Field(default_factory=dict, description="a plan that all cells share")
    matrix: dict[str, Any] = Field(description="axes with their values")
    modes: dict[str, Variation] = Field(description="ways to run it")
    scales: dict[str, Variation] = Field(description="sizes to run it at; full is the paper's")

    @classmethod
    def load(cls, name: str) -> Experiment:
        """Return the experiment of a name such as ``fedcomm/fig08``. Raises PlanError."""
        folder = ROOT / name
        if not (folder / "plan.toml").is_file():
            raise PlanError(f"there is no experiment {name!r}", f"Known: {', '.join(names())}")
        try:
            made = cls.model_validate(_whole(read(folder / "plan.toml"), folder.parent))
        except ValueError as error:
            raise PlanError(f"{folder / 'plan.toml'}: {error}", "Correct it") from error
        chosen = {mode: way for mode, way in made.modes.items() if made.only in (None, mode)}
        return made.model_copy(update={"modes": chosen})

    def bench(self, mode: str, scale: str) -> BenchPlan:
        """Return the bench plan of a mode at a scale. Raises PlanError for unknown names."""
        way, size = _pick(self.modes, mode, "mode"), _pick(self.scales, scale, "scale")
        matrix = dict(self.matrix)
        for axis, labels in [*way.matrix.items(), *size.matrix.items()]:
            matrix[axis] = [label for label in matrix.get(axis, []) if label in labels]
        for axis, meant in way.values.items():
            matrix[axis] = [_meant(label, meant.get(label, label)) for label in matrix.get(axis, [])]
        chosen = {
            "accounting": way.accounting or "measured",
            "repetitions": size.repetitions or way.repetitions,
            "limit": size.limit or way.limit,
            "base": _over(_over(self.base, way.base), size.base),
            "matrix": matrix,
        }
        return BenchPlan.of({key: value for key, value in chosen.items() if value is not None}, f"{mode}, {scale}")

    def cells(self, mode: str, scale: str) -> Matrix:
        """Return the matrix of a mode at a scale, without the cells that are not run. Raises PlanError."""
        whole = Matrix.of(self.bench(mode, scale), f"{mode}, {scale}")
        places = [*self.modes[mode].without, *self.scales[scale].without]
        return replace(
            whole, cells=[c for c in whole.cells if not any(p.items() <= c.settings.items() for p in places)]
        )

    def axes(self, mode: str, scale: str) -> dict[str, list[str]]:
        """Return the labels of each axis, in their order. Raises PlanError."""
        labels = axes(self.bench(mode, scale).matrix, mode)
        return {axis: [named(value) for value in values] for axis, values in labels.items()}


def names() -> list[str]:
    """Return the names of all experiments."""
    return sorted(str(file.parent.relative_to(ROOT)) for file in ROOT.glob("*/*/plan.toml"))


def _pick(choices: Mapping[str, Variation], name: str, what: str) -> Variation:
    if name not in choices:
        raise PlanError(f"there is no {what} {name!r}", f"Known: {', '.join(choices)}")
    return choices[name]


def _meant(label: Any, value: Any) -> Any:
    return {NAME: label, **(value if isinstance(value, Mapping) else {IS: value})}


def _whole(table: dict[str, Any], study: Path) -> dict[str, Any]:
    common = table.pop("common", None)
    return table if common is None else _over(_whole(read(study / common), study), table)


def _over(table: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``table`` with ``other`` merged into it, recursively."""
    merged = deepcopy(dict(table))
    for key, value in other.items():
        inner = merged.get(key)
        merged[key] = _over(inner, value) if isinstance(value, Mapping) and isinstance(inner, Mapping) else value
    return merged
