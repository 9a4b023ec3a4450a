"""Figures for a paper."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import matplotlib.image
import pytest

from tests.report.records import make
from thalweg.errors import RecordError
from thalweg.report import report
from thalweg.report.figures import DOTS, SETTINGS, WIDTH

NAMES = {"accuracy-rounds", "accuracy-time", "communication-time", "round-time", "timeline", "links"}


def test_each_is_a_png_and_an_svg_at_a_column_s_width(wifi: Path, tmp_path: Path) -> None:
    made = report([wifi], tmp_path / "r.html", tmp_path / "figures")
    assert made.left_out == {}
    assert {Path(path).name for path in made.figures} == {f"{name}.{form}" for name in NAMES for form in ("png", "svg")}
    for name in NAMES:
        pixels = matplotlib.image.imread(tmp_path / "figures" / f"{name}.png")
        assert pixels.shape[1] == round(WIDTH * DOTS)
        assert len({tuple(pixel) for pixel in pixels.reshape(-1, pixels.shape[2])[::7]}) > 3, "there is colour"
        root = ElementTree.parse(tmp_path / "figures" / f"{name}.svg").getroot()  # noqa: S314 - our own file
        assert root.get("width") == f"{72 * WIDTH:g}pt"
    assert min(value for key, value in SETTINGS.items() if key.endswith("size") and "marker" not in key) >= 6.5


def test_the_same_records_give_the_same_bytes(wifi: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        report([wifi], tmp_path / "r.html", tmp_path / name)
    files = sorted((tmp_path / "a").iterdir())
    assert len(files) == 2 * len(NAMES)
    for path in files:
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
        assert b"<dc:date>" not in path.read_bytes()


def test_what_cannot_be_drawn_is_left_out_with_the_reason(bare: Path, tmp_path: Path) -> None:
    made = report([bare], tmp_path / "r.html", tmp_path / "figures")
    assert set(made.left_out) == {"accuracy-rounds", "accuracy-time", "links"}
    assert "not trained" in made.left_out["accuracy-time"]
    assert len(made.figures) == 6


def test_runs_are_compared_and_names_are_only_names(tmp_path: Path) -> None:
    odd = "../$x_1$ <b> \u6cb3"
    paths = [
        make(tmp_path / f"run-{number}", names=[odd, "b"], manifest={"network": {"profile": f"{odd}{number}"}})
        for number in (1, 2)
    ]
    made = report(paths, tmp_path / "r.html", tmp_path / "figures")
    names = {Path(path).stem for path in made.figures}
    assert len(names) == 4 + 2 * 2
    assert all(Path(path).parent == tmp_path / "figures" for path in made.figures)


def test_a_folder_that_cannot_be_made(wifi: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot write figures") as caught:
        report([wifi], tmp_path / "r.html", tmp_path / "file" / "figures")
    assert "--figures" in caught.value.hint
