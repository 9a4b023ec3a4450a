"""Versions of the site of the documents, each in a folder of its own.

::

    site/index.html      leads to the newest release, or to dev if there is none
    site/versions.json   the versions, for the menu that the theme shows in the head of each page
    site/0.1.0/          a release. Its address stays
    site/latest/         a page for each page of the newest release, that leads there
    site/dev/            the documents of a commit that is no release

``versions.json`` has the form that the program mike writes, which the theme reads.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from thalweg.sections import toml

ROOT: Final = Path(__file__).parents[1]
DEVELOPMENT: Final = "dev"
LATEST: Final = "latest"
LIST: Final = "versions.json"
RELEASE: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(-.+)?")
PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>thalweg</title>
<meta http-equiv="refresh" content="0; url={0}">
<link rel="canonical" href="{0}">
<a href="{0}">{0}</a>
</html>
"""


@dataclass(frozen=True)
class Version:
    """A version: its folder below ``site``, its name in the menu, and the line at the foot of its pages."""

    folder: str
    title: str
    foot: str


def of_checkout() -> Version:
    """Return the version of this checkout. It is a release if its commit has that release's tag."""
    number = toml.loads((ROOT / "Cargo.toml").read_text(), "Cargo.toml")["workspace"]["package"]["version"]
    return version(number, _git("rev-parse", "--short=12", "HEAD"), _git("tag", "--points-at", "HEAD").split())


def version(number: str, commit: str, tags: list[str]) -> Version:
    """Return the version of a commit. ``number`` is the version in Cargo.toml."""
    at = f", commit {commit}" if commit else ""
    if f"v{number}" in tags:
        return Version(number, number, f"thalweg {number}{at}")
    return Version(DEVELOPMENT, "development", f"thalweg after {number}, not released{at}")


def publish(site: Path, made: Version) -> None:
    """Add a version, whose folder has just been built, to the versions of a site."""
    listed = {str(one["version"]): str(one["title"]) for one in _listed(site / LIST)} | {made.folder: made.title}
    there = sorted((name for name in listed if (site / name / "index.html").is_file()), key=_order, reverse=True)
    releases = [name for name in there if name != DEVELOPMENT]
    newest = next(iter(releases), None)
    table = [
        {"version": name, "title": listed[name], "aliases": [LATEST] if name == newest else []}
        for name in [*releases, *(name for name in there if name == DEVELOPMENT)]
    ]
    (site / LIST).write_text(json.dumps(table, indent=2) + "\n")
    (site / "index.html").write_text(_leading(f"{newest or DEVELOPMENT}/index.html"))
    shutil.rmtree(site / LATEST, ignore_errors=True)
    for page in sorted((site / newest).rglob("*.html")) if newest else ():
        path = page.relative_to(site / str(newest))
        target = site / LATEST / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_leading(f"{'../' * len(path.parts)}{newest}/{path.as_posix()}"))


def _leading(address: str) -> str:
    """Return a page that leads to another one."""
    return PAGE.format(html.escape(address))


def _order(name: str) -> tuple[Any, ...]:
    """Return a key by which releases are sorted. A pre-release is before its release."""
    found = RELEASE.fullmatch(name)
    if found is None:
        return (-1,)
    major, minor, patch, rest = found.groups()
    return int(major), int(minor), int(patch), rest is None, rest or ""


def _listed(path: Path) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
    return listed


def _git(*words: str) -> str:
    """Return what git prints; nothing without git, or outside of a repository."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
