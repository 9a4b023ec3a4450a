"""Checks the documents: links, commands, plan keys, examples.

In every Markdown file
- relative links lead to a file, and to a heading of it;
- commands in ```` ```console ```` blocks (lines that begin with ``$ ``) name targets of the Makefile, or commands and
  options that thalweg has; those in ```` ```console run ```` blocks are run, in order, in a folder of the file's own,
  from which `examples` leads to that folder of the repository;
- ```` ```toml plan ```` blocks are plans, ```` ```toml bench ```` blocks bench plans, and ```` ```python run ````
  blocks run to their end in that folder too;
- text between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` equals what scripts/docs_tables.py generates. It may be
  whole lines, or a part of a line.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import usage
from docs_tables import GENERATED, leaves, params

from thalweg.bench import BenchPlan, Matrix
from thalweg.errors import ThalwegError
from thalweg.plan import Plan

ROOT: Final = Path(__file__).parents[1]
LINK: Final = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
FENCE: Final = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
MARKED: Final = re.compile(r"(<!-- begin (\w+) -->)(.*?)(<!-- end \2 -->)", re.DOTALL)
MARK: Final = re.compile(r"<!-- (?:begin|end) \w+ -->")
SECONDS: Final = 300
# Options before a subcommand, and options of every command.
COMMON: Final = frozenset({"-h", "--help"})
OF_ALL: Final = frozenset({"--version", "--install-completion", "--show-completion"})


class Block(NamedTuple):
    """A fenced block: its file, the number of its first line, the words after the fence, and its text."""

    path: Path
    line: int
    words: list[str]
    text: str

    @property
    def place(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def documents() -> list[Path]:
    """Return every Markdown file of the repository."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    paths = [ROOT / name for name in listing.stdout.split("\0") if name] or [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
    ]
    return sorted(path for path in set(paths) if path.is_file())


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a file."""
    text = path.read_text()
    return [Block(path, text.count("\n", 0, m.start()) + 1, m[2].split(), m[3]) for m in FENCE.finditer(text)]


def link_faults(path: Path) -> Iterator[str]:
    """Yield broken links."""
    for target in LINK.findall(FENCE.sub("", path.read_text())):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        linked = path if not name else (path.parent / name).resolve()
        if not linked.exists():
            yield f"{path.relative_to(ROOT)}: the link {target} leads nowhere"
        elif anchor and linked.suffix == ".md" and anchor not in anchors(linked):
            yield f"{path.relative_to(ROOT)}: {name or path.name} has no heading #{anchor}"


@lru_cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a file's headings."""
    headings = re.findall(r"^#+ +(.+?) *$", FENCE.sub("", path.read_text()), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return frozenset(heading.replace(" ", "-") for heading in plain)


def commands(block: Block) -> list[str]:
    """Return the commands of a console block, with lines joined that end in a backslash."""
    joined = re.sub(r"\\\n *", " ", block.text)
    return [line.removeprefix("$ ") for line in joined.splitlines() if line.startswith("$ ")]


def command_faults(block: Block) -> Iterator[str]:
    """Yield subcommands, options and targets in the commands of a block that do not exist."""
    for command in commands(block):
        words = [word for word in shlex.split(command, comments=True) if not re.fullmatch(r"[A-Z_]+=.*", word)]
        # The words after "--" belong to another program.
        words = words[: words.index("--")] if "--" in words else words
        name = Path(words[0]).name if words else ""
        faults = thalweg_faults(words[1:]) if name == "thalweg" else make_faults(words[1:]) if name == "make" else []
        yield from (f"{block.place}: `{command}`: {fault}" for fault in faults)


def thalweg_faults(words: list[str]) -> list[str]:
    """Return the subcommands and options of a thalweg command that do not exist."""
    known_options = {
        name: {option for p in params(command) for option in (*p.opts, *p.secondary_opts)} for name, command in leaves()
    }
    if not words or words[0].startswith("-"):
        return [f"no option {word}" for word in words if word not in COMMON | OF_ALL]
    name = next((n for n in (" ".join(words[:length]) for length in (3, 2, 1)) if n in known_options), None)
    if name is None:
        return [] if words[0] in ("lab", "pki") and set(words[1:]) <= COMMON else [f"no command {words[0]}"]
    options = {word.partition("=")[0] for word in words if re.match(r"-{1,2}[a-z]", word)}
    return [f"{name} has no option {option}" for option in sorted(options - known_options[name] - COMMON)]


def make_faults(words: list[str]) -> list[str]:
    """Return the targets of a make command that the Makefile lacks."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = [word for word in words if not word.startswith("-") and "=" not in word]
    return [f"no target {word}" for word in wanted if word not in targets]


def plan_faults(block: Block) -> Iterator[str]:
    """Yield the errors of a plan."""
    try:
        Plan.loads(block.text, block.place)
    except ThalwegError as error:
        yield str(error)


def bench_faults(block: Block) -> Iterator[str]:
    """Yield the errors of a bench plan."""
    try:
        Matrix.of(BenchPlan.loads(block.text, block.place), block.place)
    except ThalwegError as error:
        yield str(error)


def made(mark: re.Match[str]) -> str:
    """Return the up-to-date text of a generated part, with its marks."""
    begin, name, old, end = mark.groups()
    if name not in GENERATED:
        return mark[0]
    around = "\n\n" if old.startswith("\n") else ""
    return f"{begin}{around}{GENERATED[name]()}{around}{end}"


def made_faults(path: Path, *, write: bool) -> Iterator[str]:
    """Yield generated parts that are out of date. With ``write``, update them instead."""
    text = path.read_text()
    plain = FENCE.sub("", text)
    yield from (f"{path.relative_to(ROOT)}: {mark} has no counterpart" for mark in MARK.findall(MARKED.sub("", plain)))
    unknown = [name for _, name, _, _ in MARKED.findall(plain) if name not in GENERATED]
    yield from (f"{path.relative_to(ROOT)}: nothing makes {name}" for name in unknown)
    fresh = MARKED.sub(made, text)
    if fresh != text and write:
        path.write_text(fresh)
    elif fresh != text:
        yield f"{path.relative_to(ROOT)}: its tables are out of date; run scripts/check_docs.py --write"


def run_faults(path: Path) -> Iterator[str]:
    """Run the blocks of a file that are marked ``run``, and yield those that fail."""
    chosen = [block for block in blocks(path) if block.words[1:] == ["run"]]
    if not chosen:
        return
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory(prefix="thalweg-docs-") as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        for block in chosen:
            scripts = commands(block) if block.words[0] == "console" else [block.text]
            for script in scripts:
                command = ["bash", "-euo", "pipefail", "-c", script]
                if block.words[0] == "python":
                    command = [sys.executable, "-c", script]
                done = subprocess.run(
                    command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
                )
                if done.returncode:
                    last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
                    yield f"{block.place}: `{script.splitlines()[0]}` ended with {done.returncode}: {last}"


def main() -> int:
    """Print all faults; return 1 if there are any."""
    parser = usage.parser(__doc__)
    parser.add_argument("--write", action="store_true", help="update the generated text")
    parser.add_argument("--quick", action="store_true", help="run nothing")
    options = parser.parse_args()
    write, quick = options.write, options.quick
    faults: list[str] = []
    ran = 0
    for path in documents():
        faults += made_faults(path, write=write)
        faults += link_faults(path)
        for block in blocks(path):
            kind = " ".join(block.words[:2])
            faults += command_faults(block) if kind.startswith("console") else ()
            faults += plan_faults(block) if kind == "toml plan" else ()
            faults += bench_faults(block) if kind == "toml bench" else ()
            ran += block.words[1:] == ["run"]
        faults += () if quick else run_faults(path)
    for fault in faults:
        print(fault)
    print(f"{len(documents())} documents, {0 if quick else ran} blocks run, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
