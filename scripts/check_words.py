"""Finds retired words, which this repository no longer uses, and prints the replacement of each.

A word counts alone and as a part of a name, in any spelling of names: ``word``, ``Word`` and ``WORD``. Where a word has
another meaning, ``allowed`` says in which places, as a pattern of ``file:line of text``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import usage

ROOT: Final = Path(__file__).parents[1]
# Third-party files, files that are neither prose nor code, and files that must contain the retired words.
SKIPPED: Final = re.compile(
    r"\.(png|o|patch|lock)$|plotly-basic|^python/thalweg/lab/guest/kernel\.config$"
    r"|^CHANGELOG\.md$|^scripts/check_words\.py$|^tests/test_checks\.py$"
)
# "mend" stays for models with missing values, packets and checksums. Errors have hints.
MENDED: Final = (
    r"^crates/fold/|^crates/(runtime|proto)/src/star/|^crates/sending/src/ltp/|^crates/masking/tests/unifl/"
    r"|^crates/conformance/src/damage\.rs|^crates/transports/\w+/src/fuzz\.rs|ask again, mend, end|RoundStep::Mend"
    r"|resume and mend by|^docs/reference/glossary\.md:\| `Mender` |\((fix\|)?mend\|correct"
)
# "guest" stays for the guest kernel of virtual time, and for a user of RabbitMQ.
KERNEL: Final = (
    r"^(python|docs|tests|README|ARCHITECTURE|CONTRIBUTING|Makefile|experiments|benches|\.gitignore|scripts)"
    r"|^crates/lab/|[Gg]uest kernel|the guest$|inside the guest|test_guest"
    r"|crates/transports/amqp/tests/(carrier|common)"
    r"|^crates/transports/unifl/tests/proxy\.rs"
)

# Words that only Rust still uses, and documents that name its files.
RUST: Final = r"^crates/|`?(runtime/graph/)?doors?\.rs"


class Word(NamedTuple):
    """A retired word, its replacement, and a pattern of ``file:line`` where it is still allowed."""

    retired: str
    instead: str
    allowed: str = r"(?!)"

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern that matches the word, also as a part of names, but not within longer words."""
        word, capital, loud = (
            one.replace("-", "[-_]") for one in (self.retired, self.retired.capitalize(), self.retired.upper())
        )
        return re.compile(rf"(?<![A-Za-z]){word}(?![a-z])|(?<![A-Z]){capital}(?![a-z])|(?<![A-Za-z]){loud}(?![A-Za-z])")


RETIRED: Final = (
    # Errors.
    Word("mend", "hint", MENDED),
    Word("mends", "hints", MENDED + r"|^ARCHITECTURE\.md|^python/thalweg/plan/(combinations|options)\.py"),
    # Crates.
    Word("crates/node", "crates/workers"),
    Word("crates/pieces", "crates/rdma-proto"),
    Word("crates/dice", "crates/rng"),
    Word("crates/pool", "crates/shm-pool"),
    Word("thalweg-node", "thalweg-workers", r"THALWEG_NODE|\bthalweg_nodes?_"),
    Word("thalweg-pieces", "thalweg-rdma-proto"),
    Word("thalweg-dice", "thalweg-rng"),
    Word("thalweg-pool", "thalweg-shm-pool", r"\bthalweg_pool_"),
    # Time limits.
    Word("patience", "timeout"),
    # Random numbers.
    Word("dice", "rng"),
    # Sets of tasks and workers.
    Word("crew", "task set"),
    Word("team", "worker pool"),
    Word("freight", "copying data plane"),
    # Processes, buffers, endpoints and messages of the Python side. Rust still has these words.
    Word("keeper", "supervisor, or checkpoint writer", RUST),
    Word("keepers", "supervisors", RUST),
    Word("shelf", "cache, or buffer", RUST),
    Word("desk", "control queue", RUST),
    Word("door", "endpoint, or ingress switch", RUST),
    Word("doors", "endpoints", RUST),
    # Peers before they are authenticated.
    Word("lobby", "admission queue"),
    Word("guest", "unauthenticated peer", KERNEL),
    Word("guests", "unauthenticated peers", KERNEL),
)


def main() -> int:
    """Print each use of a retired word; return 1 if there is one."""
    usage.parser(__doc__).parse_args()
    uses = list(faults(ROOT, tracked(ROOT)))
    for fault in uses:
        print(fault)
    print(f"{len(RETIRED)} retired words, {len(uses)} uses")
    return 1 if uses else 0


def tracked(root: Path) -> list[str]:
    """Return the repository's files to check, without those that git ignores and those of SKIPPED."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return sorted({name for name in listed.stdout.split("\0") if name and not SKIPPED.search(name)})


def faults(root: Path, names: list[str]) -> Iterator[str]:
    """Yield file, line, word and replacement for each use of a retired word, also in file names."""
    words = [(word, word.pattern(), re.compile(word.allowed)) for word in RETIRED]
    for name in names:
        path = root / name
        if not path.is_file():  # deleted, and not committed yet
            continue
        text = f"{name}\n{path.read_text(errors='replace')}"
        low = text.lower().replace("_", "-")
        here = [entry for entry in words if entry[0].retired in low]
        for number, line in enumerate(text.splitlines() if here else ()):
            for word, pattern, allowed in here:
                use = pattern.search(line)
                if use and not allowed.search(f"{name}:{line}"):
                    yield f"{name}:{number or 'name'}: {use[0]} -> {word.instead}"


if __name__ == "__main__":
    sys.exit(main())
