"""Checks the locked crates against known security advisories.

The advisories change without this repository, so none are kept in it. They come from a copy of RustSec's database in
the folder that ``THALWEG_ADVISORIES`` names, or else from cargo-deny, which fetches them. Without either, the check is
skipped with a message.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import usage

from thalweg.sections import toml

ROOT: Final = Path(__file__).parents[1]
LOCKS: Final = (ROOT / "Cargo.lock", ROOT / "fuzz" / "Cargo.lock")
FRONT: Final = re.compile(r"\A```toml\n(.*?)\n```", re.DOTALL)
COMPARATOR: Final = re.compile(r"\s*(>=|<=|>|<|=|\^|~)?\s*v?([0-9A-Za-z.+*-]+)\s*")

# Major, minor, patch, and False for a pre-release, which sorts before its release.
Version: TypeAlias = tuple[int, int, int, bool, str]


def parse(text: str) -> Version:
    """Return a version as a tuple for comparison. Missing parts are 0."""
    core, _, before = text.partition("+")[0].partition("-")
    parts = [int(part) for part in core.split(".") if part.isdecimal()] + [0, 0, 0]
    return parts[0], parts[1], parts[2], not before, before


def after(text: str, operator: str) -> Version:
    """Return the lowest version above the range ``^text`` or ``~text``."""
    numbers = text.partition("-")[0].split(".")
    major, minor, patch = parse(text)[:3]
    if operator == "~":
        return (major, minor + 1, 0, False, "") if len(numbers) > 1 else (major + 1, 0, 0, False, "")
    if major or len(numbers) == 1:
        return major + 1, 0, 0, False, ""
    return (0, minor + 1, 0, False, "") if minor or len(numbers) == 2 else (0, 0, patch + 1, False, "")


def holds(version: str, requirement: str) -> bool:
    """Whether ``version`` fulfils all parts of a requirement such as ``>= 1.2.3, < 2``. Raises ValueError."""
    return all(compare(parse(version), part) for part in requirement.split(","))


def compare(version: Version, comparator: str) -> bool:
    match = COMPARATOR.fullmatch(comparator)
    if match is None:
        raise ValueError(f"{comparator!r} compares nothing")
    operator, text = match[1] or "^", match[2]
    bound = parse(text)
    if operator in ("^", "~"):
        return bound <= version < after(text, operator)
    return {">=": version >= bound, "<=": version <= bound, ">": version > bound, "<": version < bound}.get(
        operator, version == bound
    )


def locked() -> set[tuple[str, str]]:
    """Return name and version of each locked crate."""
    packages = [package for path in LOCKS for package in toml.loads(path.read_text(), str(path))["package"]]
    return {(package["name"], package["version"]) for package in packages if "source" in package}


def advisories(database: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the advisories of a crate that were not withdrawn."""
    for path in sorted((database / "crates" / name).glob("*.md")):
        front = FRONT.match(path.read_text(errors="replace"))
        table = toml.loads(front[1], path.name) if front else {}
        if "withdrawn" not in table.get("advisory", {"withdrawn": True}):
            yield table


def concerns(version: str, advisory: dict[str, Any]) -> bool:
    """Return whether a version is vulnerable: neither patched nor unaffected."""
    versions = advisory.get("versions", {})
    well: Iterable[str] = (*versions.get("patched", ()), *versions.get("unaffected", ()))
    return not any(holds(version, requirement) for requirement in well)


def look(database: Path) -> int:
    """Print the advisories about locked crates. Returns 1 if one is more than informational."""
    if not (database / "crates").is_dir():
        print(f"error: {database} has no folder crates\nhint: name a copy of RustSec's database")
        return 1
    crates, faults, notes = locked(), 0, 0
    for name, version in sorted(crates):
        for advisory in filter(lambda one: concerns(version, one), advisories(database, name)):
            about = advisory["advisory"]
            note = about.get("informational") in ("unmaintained", "notice")
            faults, notes = faults + (not note), notes + note
            patched = ", ".join(advisory.get("versions", {}).get("patched", ())) or "in no version"
            print(f"{'note' if note else 'error'}: {name} {version}: {about['id']}; repaired: {patched}")
    print(f"{len(crates)} crates, {faults} advisories, {notes} notes")
    return 1 if faults else 0


def main() -> int:
    """Check with the tool that is installed. Returns 1 if a crate has a known vulnerability."""
    usage.parser(__doc__).parse_args()
    if folder := os.environ.get("THALWEG_ADVISORIES"):
        return look(Path(folder))
    if shutil.which("cargo-deny"):
        return subprocess.run(["cargo", "deny", "check", "advisories"], cwd=ROOT, check=False).returncode
    print("skipped: cargo-deny is not installed, and THALWEG_ADVISORIES names no copy of RustSec's database")
    return 0


if __name__ == "__main__":
    sys.exit(main())
