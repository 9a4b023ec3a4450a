"""The stored object code of the eBPF programs is what their sources compile to."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
CRATE: Final = ROOT / "crates/ebpf"
OBJECTS: Final = CRATE / "objects"


def made_of() -> tuple[str, dict[str, str]]:
    """Return the name of the compiler, and the digests of all sources and objects."""
    first, *rest = (OBJECTS / "MADE_OF").read_text().splitlines()
    return first.removeprefix("# "), {name: digest for digest, name in (line.split() for line in rest)}


def test_the_objects_are_of_these_sources() -> None:
    _, digests = made_of()
    files = [*(CRATE / "programs").iterdir(), *OBJECTS.glob("*.o")]
    now = {f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert now == digests, "run make ebpf, which needs clang"


def test_the_stored_objects_are_what_clang_compiles(tmp_path: Path) -> None:
    clang = shutil.which(os.environ.get("CLANG") or "clang")
    if clang is None:
        pytest.skip("clang is not installed")
    subprocess.run([ROOT / "scripts/ebpf.sh", tmp_path], check=True, capture_output=True)
    done = subprocess.run([clang, "--version"], check=True, capture_output=True, text=True)
    here, made_by = f"{done.stdout.splitlines()[0]}, {platform.machine()}", made_of()[0]
    if here != made_by:
        pytest.skip(f"they were compiled by {made_by}; by {here} other code is right too")
    for path in OBJECTS.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
