"""Profiles: named settings of a link. Shipped ones are TOML files in a folder beside this file; users add their own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from thalweg.errors import PlanError
from thalweg.sections import Section, Text, explain, toml
from thalweg.sections.network import LinkSection

OWN: Final = "THALWEG_PROFILES"
SUFFIX: Final = ".toml"
LARGEST_FILE: Final = 1 << 16
_SHIPPED: Final = Path(__file__).with_suffix("")


class ProfileFile(Section):
    """What a profile's file holds."""

    title: Text | None = Field(None, description="what it is, in a word or two")
    description: str = Field("", description="what it is like, and what it leaves out")
    source: list[Text] = Field(default_factory=list, description="where its numbers are from")
    link: LinkSection = Field(description="keys of a link, with up and down for one direction")


@dataclass(frozen=True)
class Profile:
    """A named link."""

    name: str
    title: str
    description: str
    source: tuple[str, ...]
    link: LinkSection


def names() -> list[str]:
    """Return the names that ``load`` knows: shipped profiles, and those in the folder THALWEG_PROFILES."""
    return sorted(_files())


def is_shipped(name: str) -> bool:
    """Return whether a profile is shipped with the program, so that every machine has it."""
    return not name.endswith(SUFFIX) and (_SHIPPED / (name + SUFFIX)).is_file()


def load(name: str) -> Profile:
    """Return the profile called ``name``, or in the file ``name`` if that ends in .toml. Raises PlanError."""
    if name.endswith(SUFFIX):
        return _read(Path(name), name)
    files = _files()
    if name not in files:
        near = get_close_matches(name, files, n=1)
        guess = f"Did you mean {near[0]!r}? " if near else ""
        raise PlanError(
            f"unknown profile {name!r}",
            f"{guess}Known: {', '.join(sorted(files))}; one's own is a path that ends in .toml, or in ${OWN}",
        )
    return _shipped(files[name], name) if is_shipped(name) else _read(files[name], name)


def _files() -> dict[str, Path]:
    files = {path.stem: path for path in _SHIPPED.glob(f"*{SUFFIX}")}
    folder = os.environ.get(OWN)
    if not folder:
        return files
    if not Path(folder).is_dir():
        raise PlanError(f"${OWN} names {folder!r}, which is no folder", "Name a folder of TOML files, or unset it")
    own = {path.stem: path for path in Path(folder).glob(f"*{SUFFIX}")}
    for name in own.keys() & files.keys():
        raise PlanError(f"{own[name]} has the name of a profile that ships", "Rename it: a name means one profile")
    return files | own


@lru_cache
def _shipped(path: Path, name: str) -> Profile:
    return _read(path, name)


def _read(path: Path, name: str) -> Profile:
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise PlanError(f"the profile {path} has more than {LARGEST_FILE} bytes", "Give the path of a profile")
        text = content.decode()
    except OSError as error:
        raise PlanError(f"cannot read the profile {path}: {error.strerror}", "Give the path of a TOML file") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"the profile {path} is not text in UTF-8", "Save it as UTF-8") from error
    source = f"the profile {path}"
    try:
        file = ProfileFile.model_validate(toml.loads(text, source))
    except ValidationError as error:
        raise explain.plan_error(error, ProfileFile, source) from None
    if file.link.profile is not None:
        raise PlanError(f"{source} names another profile", "Write its keys out: a profile stands for itself")
    return Profile(name, file.title or Path(name).stem, file.description, tuple(file.source), file.link)
