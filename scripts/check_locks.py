"""Checks that lock files pin all packages with checksums, and name no index or address of their own.

The user who installs chooses the registry or mirror, so a lock file must not name one. No package may come from a git
repository. Cargo checks the workspace's own lock file whenever it builds. CI does not build the fuzz targets, so this
script compares their lock file with the crates' manifests.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

import usage

from thalweg.sections import toml

ROOT: Final = Path(__file__).parents[1]
PYTHON_LOCKS: Final = tuple(sorted((ROOT / "requirements").rglob("*.lock")))
FUZZ_LOCK: Final = ROOT / "fuzz" / "Cargo.lock"
RUST_LOCKS: Final = (ROOT / "Cargo.lock", FUZZ_LOCK)
# Cargo's name of its default registry. Mirrors are configured outside of the repository.
DEFAULT: Final = re.compile(r"registry\+https://[^/ ]+/rust-lang/[^/ ]+")
OPTION: Final = re.compile(r"^\s*(-i\b|-f\b|-e\b|--(index-url|extra-index-url|find-links|trusted-host|editable)\b)")


def python_faults(text: str) -> list[str]:
    """Return the faults of a lock file of Python packages."""
    faults = [f"line {n} names a source: {line.strip()}" for n, line in enumerate(text.splitlines(), 1) if named(line)]
    pins = re.findall(r"^([A-Za-z0-9][^\s;]*)(?:.*\\\n((?:    --hash=sha256:[0-9a-f]{64}.*\n?)+))?", text, re.MULTILINE)
    faults += [f"{pin} is not pinned to one version" for pin, _ in pins if "==" not in pin]
    faults += [f"{pin} has no hash" for pin, hashes in pins if not hashes]
    return faults if pins else ["it pins nothing"]


def named(line: str) -> bool:
    """Return whether a line names an index, a folder, an address or a repository."""
    return bool(OPTION.match(line)) or "://" in line or "git+" in line or " @ " in line


def rust_faults(lock: dict[str, Any]) -> list[str]:
    """Return the faults of a lock file of crates."""
    faults = []
    for package in lock.get("package", []):
        name, source = f"{package['name']} {package['version']}", package.get("source")
        if source is None:
            if not package["name"].startswith("thalweg"):
                faults.append(f"{name} has no source")
        elif not DEFAULT.fullmatch(source):
            faults.append(f"{name} comes from {source}")
        elif not re.fullmatch(r"[0-9a-f]{64}", package.get("checksum", "")):
            faults.append(f"{name} has no checksum")
    return faults


def stale(lock: dict[str, Any], manifests: dict[str, dict[str, Any]]) -> list[str]:
    """Return the crates of this repository for which a lock file differs from their ``manifests``, given by name."""
    faults = []
    for package in lock.get("package", []):
        manifest = manifests.get(package["name"])
        if manifest is None:
            continue
        locked = {entry.split()[0] for entry in package.get("dependencies", [])}
        needed, possible = dependencies(manifest)
        if not needed <= locked <= possible:
            differing = ", ".join(sorted((needed - locked) | (locked - possible)))
            faults.append(f"{package['name']} has other dependencies by now: {differing}")
    return faults


def dependencies(manifest: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return a manifest's dependencies in two sets: those that every build has, and all except those of tests."""
    sections = [manifest, *manifest.get("target", {}).values()]
    named = [part for section in sections for key in ("dependencies", "build-dependencies")
             for part in section.get(key, {}).items()]  # fmt: skip
    optional = {name for name, options in named if isinstance(options, dict) and options.get("optional", False)}
    return {name for name, _ in named} - optional, {name for name, _ in named}


def manifests() -> dict[str, dict[str, Any]]:
    """Return the manifests of all crates by name."""
    files = [*ROOT.glob("crates/**/Cargo.toml"), ROOT / "fuzz" / "Cargo.toml"]
    tables = [toml.loads(path.read_text(), str(path)) for path in files]
    return {manifest["package"]["name"]: manifest for manifest in tables}


def main() -> int:
    """Print the faults; return 1 if there are any."""
    usage.parser(__doc__).parse_args()
    faults_by_file = {path: python_faults(path.read_text()) for path in PYTHON_LOCKS}
    faults_by_file |= {path: rust_faults(toml.loads(path.read_text(), str(path))) for path in RUST_LOCKS}
    faults_by_file[FUZZ_LOCK] += stale(toml.loads(FUZZ_LOCK.read_text(), str(FUZZ_LOCK)), manifests())
    for path, faults in faults_by_file.items():
        for fault in faults:
            print(f"{path.relative_to(ROOT)}: {fault}")
        print(f"{path.relative_to(ROOT)}: {len(faults)} faults")
    if any(faults_by_file.values()):
        print("hint: `make lock` or `cargo update` without settings of this machine, then look at the difference;")
        print("      `cargo metadata --manifest-path fuzz/Cargo.toml` if the lock file of fuzz is stale")
    return 1 if any(faults_by_file.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
