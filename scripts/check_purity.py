"""Checks rules of the Rust crates that the compiler does not check.

1. Pure crates open no socket, start no thread, never sleep, read no clock and no unseeded randomness: time and seeds
   are arguments. ``PURE`` lists them. So the same code runs live, with a virtual clock and network, and under a fuzzer.
2. Every crate forbids unsafe code, but the few that are named here with the reason.
3. Nothing but the registry names a concrete transport.
4. Crates for tests are dependencies of tests only: ``[dev-dependencies]`` names them, ``[dependencies]`` does not.

Tests inside of the files (below ``#[cfg(test)]``), comments and texts do not count.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import usage

from thalweg.sections import toml

ROOT: Final = Path(__file__).parents[1]
CRATES: Final = ROOT / "crates"
PURE: Final = ("control", "fold", "linkmodel", "masking", "proto", "rdma-proto", "rng", "sending", "wire")
# Names of the standard library and of popular crates that a pure crate must not use.
IMPURE: Final = {
    r"\b(std|core)::net\b": "sockets",
    r"\bstd::os\b": "the operating system",
    r"\bstd::(fs|env|process)\b": "files, environment or processes",
    r"\b(Instant|SystemTime)\b": "a clock",
    r"\bthread::(spawn|sleep|scope|Builder|park)|\bstd::thread\b": "threads or sleep",
    r"\b(tokio|async_std|smol|mio|socket2|rayon|crossbeam\w*)::": "a runtime",
    r"\b(rand|getrandom|fastrand|RandomState)\b": "unseeded randomness",
}
IMPURE_CRATES: Final = frozenset(
    "async-std chrono crossbeam fastrand getrandom libc mio rand rayon smol socket2 time tokio".split()
)
# Crates that may have unsafe code. Clippy requires a SAFETY comment on each block.
UNSAFE: Final = {
    "arena": "lends slices of one buffer, which the borrow checker cannot follow; reads memory that others write",
    "lab": "the relay's real-time priority",
    "sockets": "two socket options that no safe crate has",
    "tun": "ioctls of a TUN device",
    "verbs": "libibverbs is C, and opened at run time; devices write to memory by themselves",
    "transports/zmq": "libzmq is C++; what the kernel says of its connections",
}
# Crates of which transports are built. They are not transports, so the registry does not name them either.
LIBRARIES: Final = frozenset({"messages"})
# Crates for tests: the contract's tests, and test doubles. Test doubles of messages' traits name that crate.
FOR_TESTS: Final = frozenset({"conformance", "testkit"})
REGISTRY: Final = CRATES / "runtime" / "src" / "registry.rs"
CODE: Final = re.compile(
    r'//[^\n]*|/\*.*?\*/|b?r(?P<h>#*)".*?"(?P=h)|b?"(?:\\.|[^"\\])*"|\'(?:\\.[^\']*|[^\'\\])\'', re.DOTALL
)


def main() -> int:
    """Print each violation of a rule. Returns 1 if there is one."""
    usage.parser(__doc__).parse_args()
    crates = sorted(path.parent for path in CRATES.glob("**/Cargo.toml") if "target" not in path.parts)
    faults = [*impure(), *unsafe(crates), *named(crates), *for_tests(crates)]
    for fault in faults:
        print(fault)
    print(f"{len(crates)} crates, {len(PURE)} of them pure, {len(faults)} faults")
    return 1 if faults else 0


def impure() -> Iterator[str]:
    """Yield the places in pure crates that use a clock, threads, randomness or I/O."""
    for crate in PURE:
        manifest = toml.loads((CRATES / crate / "Cargo.toml").read_text(), crate)
        for name in sorted(IMPURE_CRATES & set(manifest.get("dependencies", {}))):
            yield f"crates/{crate}/Cargo.toml: depends on {name}, but {crate} is pure (ARCHITECTURE.md, invariant 1)"
        for path in sources(CRATES / crate):
            for number, line in enumerate(code(path.read_text()).splitlines(), 1):
                for pattern, what in IMPURE.items():
                    if re.search(pattern, line):
                        yield f"{place(path, number)}: {line.strip()}: {what}; hand it in as an argument"


def unsafe(crates: list[Path]) -> Iterator[str]:
    """Yield crates that do not forbid unsafe code, and outdated exceptions."""
    for crate in crates:
        name = crate.relative_to(CRATES).as_posix()
        forbids = "#![forbid(unsafe_code)]" in code((crate / "src" / "lib.rs").read_text())
        used = any(re.search(r"\bunsafe\b", code(path.read_text())) for path in sources(crate))
        if name in UNSAFE:
            if not used:
                yield f"crates/{name}: has no unsafe code; take it off the list in scripts/check_purity.py"
        elif not forbids or used:
            yield f"crates/{name}/src/lib.rs: add #![forbid(unsafe_code)]"


def named(crates: list[Path]) -> Iterator[str]:
    """Yield the places that name a concrete transport, outside of its own crate and of the registry."""
    transports = [path.name for path in sorted((CRATES / "transports").iterdir()) if (path / "Cargo.toml").is_file()]
    pattern = re.compile(rf"\bthalweg_({'|'.join(map(re.escape, transports))})\b")
    for crate in crates:
        if crate.parent.name == "transports":
            continue
        for path in sources(crate):
            for number, line in enumerate(code(path.read_text()).splitlines(), 1):
                match = pattern.search(line)
                if match and match[1] in LIBRARIES and crate.name in FOR_TESTS:
                    continue
                if match and (path != REGISTRY or match[1] in LIBRARIES):
                    yield f"{place(path, number)}: {line.strip()}: only the registry names a transport (invariant 2)"


def for_tests(crates: list[Path]) -> Iterator[str]:
    """Yield the crates of the product that depend on a crate for tests."""
    names = {f"thalweg-{name}" for name in FOR_TESTS}
    for crate in crates:
        manifest = toml.loads((crate / "Cargo.toml").read_text(), crate.name)
        for name in sorted(names & set(manifest.get("dependencies", {}))):
            yield f"{crate.relative_to(ROOT)}/Cargo.toml: name {name} in [dev-dependencies]; it is for tests"


def sources(crate: Path) -> list[Path]:
    """Return the source files of a crate, without its tests and examples."""
    return sorted((crate / "src").rglob("*.rs"))


def code(text: str) -> str:
    """Return Rust code without comments, strings and the tests at its end. Line numbers do not change."""
    bare = CODE.sub(lambda found: "\n" * found[0].count("\n"), text)
    return bare.partition("#[cfg(test)]\nmod ")[0]


def place(path: Path, number: int) -> str:
    """Return a place as ``file:line``."""
    return f"{path.relative_to(ROOT)}:{number}"


if __name__ == "__main__":
    sys.exit(main())
