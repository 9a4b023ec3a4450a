"""Checks the licences of all crates and of the Python packages needed at run time. Works without a network.

Where cargo-deny is installed, deny.toml tells it the same.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import usage
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from spdx import SpdxError, is_met

from thalweg.sections import toml

ROOT: Final = Path(__file__).parents[1]
# Licences that a dependency of an Apache-2.0 program may have. The same list is in deny.toml.
ALLOWED: Final = frozenset(
    """
    0BSD Apache-2.0 BSD-2-Clause BSD-3-Clause BSL-1.0 CC0-1.0 CDLA-Permissive-2.0 ISC MIT MIT-0 MIT-CMU PSF-2.0
    Python-2.0 Unicode-3.0 Unlicense Zlib
    """.split()
)
# PyTorch's CUDA packages have their vendor's licence. Most are not installed here, and none is used.
NOT_LOOKED_AT: Final = re.compile(r"nvidia-.*|cuda-.*|triton|pytorch-triton")
# Crates that contain another project's source, which is compiled in -> its licence, and why it is allowed.
WITHIN: Final = {
    "libsodium-sys-stable": "ISC",
    # libzmq. MPL-2.0 requires the source of its own files only, and they are built unchanged.
    "zeromq-src": "MPL-2.0",
}
FINE_WITHIN: Final = ALLOWED | {"MPL-2.0"}
# Python packages that an extra brings, which stay packages of their own, unchanged -> their licence. MPL-2.0 asks for
# the source of its own files, which these packages are, and CNRI-Python for its notice, which they have.
BESIDE: Final = {
    "certifi": "MPL-2.0",
    "orjson": "MPL-2.0",
    "pathspec": "MPL-2.0",
    "regex": "CNRI-Python",
    "tqdm": "MPL-2.0",
}
# Packages whose metadata do not have an SPDX expression -> the licence in their licence file.
IN_WORDS: Final = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "bsd, public domain": "BSD-2-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "isc license": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "dual license": "Apache-2.0 OR BSD-3-Clause",
}


def main() -> int:
    """Print the licences that are not allowed. Returns 1 if there are any."""
    usage.parser(__doc__).parse_args()
    crates, packages = crate_licences(), package_licences()
    faults = [*faults_of("crate", crates), *faults_of("package", packages), *faults_within(crates), *deny_faults()]
    for fault in faults:
        print(fault)
    print(f"{len(crates)} crates, {len(packages)} Python packages, {len(faults)} faults")
    if faults:
        print(f"hint: replace the dependency; allowed are {', '.join(sorted(ALLOWED))}")
    return 1 if faults else 0


def faults_of(kind: str, licences: dict[str, str | None]) -> list[str]:
    """Return those of ``licences`` (name -> expression, None if unknown) that are not allowed."""
    faults = []
    for name, expression in sorted(licences.items()):
        try:
            if expression is None:
                faults.append(f"{kind} {name}: its metadata name no licence")
            elif not is_met(expression, ALLOWED | {BESIDE[name]} if kind == "package" and name in BESIDE else ALLOWED):
                faults.append(f"{kind} {name}: {expression} is not allowed")
        except SpdxError as error:
            faults.append(f"{kind} {name}: {expression!r} is no SPDX expression: {error}")
    return faults


def faults_within(crates: dict[str, str | None]) -> list[str]:
    """Return the entries of WITHIN that are not allowed, or that no build uses any more."""
    there = {name.partition(" ")[0] for name in crates}
    faults = [f"{name} is not used; take it out of WITHIN" for name in sorted(WITHIN.keys() - there)]
    return faults + [f"within {name}: {licence}" for name, licence in WITHIN.items() if licence not in FINE_WITHIN]


def crate_licences() -> dict[str, str | None]:
    """Return the licence of each crate that this machine's builds use, tests and build scripts included."""
    facts = dict(line.split(": ", 1) for line in output("rustc", "-vV").splitlines() if ": " in line)
    platform = ["--filter-platform", facts["host"]]
    metadata = json.loads(output("cargo", "metadata", "--format-version", "1", "--locked", *platform))
    return {f"{package['name']} {package['version']}": package["license"] for package in metadata["packages"]}


def output(*command: str) -> str:
    """Return a command's standard output; its errors go to the terminal. Raises CalledProcessError."""
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def package_licences() -> dict[str, str | None]:
    """Return the licence of each Python package that thalweg and its extras need at run time."""
    project = toml.loads((ROOT / "pyproject.toml").read_text(), "pyproject.toml")["project"]
    extras = [requirement for group in project["optional-dependencies"].values() for requirement in group]
    open_, licences = [Requirement(text) for text in (*project["dependencies"], *extras)], dict[str, str | None]()
    while open_:
        wanted = open_.pop()
        name = canonicalize_name(wanted.name)
        if name in licences or NOT_LOOKED_AT.fullmatch(name) or not applies(wanted, {""}):
            continue
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            print(f"package {name} is not installed here and was not looked at")
            continue
        licences[name] = licence(package)
        needs = [Requirement(text) for text in package.requires or ()]
        open_ += [need for need in needs if applies(need, wanted.extras | {""})]
    return licences


def applies(requirement: Requirement, extras: set[str]) -> bool:
    """Return whether a requirement applies on this machine with one of ``extras``."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


def licence(package: metadata.Distribution) -> str | None:
    """Return a package's licence, as an SPDX expression if its metadata allow that."""
    metadata: Any = package.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    text = str(metadata.get("License") or "").strip()
    if text and "\n" not in text and text != "UNKNOWN":
        return IN_WORDS.get(text.lower(), text)
    classified = [line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or () if "License ::" in line]
    known = [IN_WORDS.get(name.lower(), name) for name in classified]
    if known:
        return " AND ".join(f"({name})" for name in known)
    return text.splitlines()[0] if text else None


def deny_faults() -> list[str]:
    """Return a fault if deny.toml has another list of licences."""
    listed = set(toml.loads((ROOT / "deny.toml").read_text(), "deny.toml")["licenses"]["allow"])
    return [f"deny.toml and scripts/check_licences.py differ in {name}" for name in sorted(listed ^ ALLOWED)]


if __name__ == "__main__":
    sys.exit(main())
