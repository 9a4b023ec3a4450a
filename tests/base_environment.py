"""A virtual environment with the base installation alone: what ``dependencies`` of pyproject.toml brings, no extra."""

from __future__ import annotations

import subprocess
import sysconfig
import venv
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from thalweg.sections import toml

ROOT: Final = Path(__file__).parents[1]
TIMEOUT: Final = 300


def base_packages() -> dict[str, Requirement]:
    """Return the distributions that a base installation has besides thalweg, by name."""
    project = toml.loads((ROOT / "pyproject.toml").read_text(), "pyproject.toml")["project"]
    open_, found = [Requirement(text) for text in project["dependencies"]], dict[str, Requirement]()
    while open_:
        wanted = open_.pop()
        if wanted.name in found or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        found[wanted.name] = wanted
        open_ += [Requirement(text) for text in distribution(wanted.name).requires or ()]
    return found


def make(folder: Path) -> Path:
    """Make the environment in ``folder``, of links to this environment's packages; return its Python."""
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    for name in base_packages():
        files = distribution(name).files or ()
        for top in sorted({path.parts[0] for path in files} - {"..", "__pycache__"}):
            (site / top).symlink_to(str(distribution(name).locate_file(top)))
    (site / "thalweg.pth").write_text(f"{ROOT / 'python'}\n")
    return folder / "bin" / "python"


def thalweg(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``thalweg`` with ``arguments`` in ``folder``, by the Python of such an environment."""
    return subprocess.run(
        [str(python), "-m", "thalweg", *arguments],
        cwd=folder,
        env={"PATH": str(python.parent), "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
