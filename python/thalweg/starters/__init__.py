"""Projects to begin with, as ``thalweg new`` writes them: an app, a plan, a README and a test.

Each folder of ``templates`` is a project. Its files end in ``.in``, so that no tool takes them for code of this
package. ``$name`` and ``$package`` in them become the project's name, and its name as a package's.
"""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import Final

from thalweg.errors import PlanError

TEMPLATES: Final = Path(__file__).parent / "templates"
SUFFIX: Final = ".in"
#: The kinds of project, each with what it is about. The first is the default, and needs no extra.
KINDS: Final = {
    "numpy": "a model of NumPy arrays; needs no extra",
    "torch": "a PyTorch model",
    "sklearn": "a classifier of scikit-learn",
    "flower": "a Flower app",
    "lora": "LoRA adapters on a language model",
    "decentralized": "nodes on a ring, without a server",
}
#: The package that a kind of project needs besides the base, as it is imported.
NEEDS: Final = {"torch": "torch", "sklearn": "sklearn", "flower": "flwr", "lora": "peft"}


def files(kind: str, name: str) -> dict[str, str]:
    """Return the files of a new project: text by name. Raises PlanError for an unknown kind."""
    if kind not in KINDS:
        raise PlanError(f"there is no project {kind!r}", f"Take one of {', '.join(KINDS)}")
    words = {"name": name, "package": re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "app"}
    texts = {path.name.removesuffix(SUFFIX): path.read_text() for path in sorted((TEMPLATES / kind).glob(f"*{SUFFIX}"))}
    return {file: Template(text).substitute(words) for file, text in texts.items()}


def make(folder: Path, kind: str) -> list[Path]:
    """Write a new project into ``folder``, which is new or empty; return its files.

    Raises PlanError for an unknown kind, or if the folder has files, and OSError.
    """
    content = files(kind, folder.resolve().name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PlanError(f"{folder} is there, and not an empty folder", "Name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in content.items():
        (folder / file).write_text(text)
    return [folder / file for file in content]
