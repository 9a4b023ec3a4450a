"""Builds the site of the documents into a folder of ``site`` for their version: ``make site``.

The Markdown files stay as they are in the repository, where their links lead to other files of it. ``prepare`` copies
them into a folder in the form that MkDocs wants, with every file that a page links to as a page of its
own. MkDocs then builds strictly: a link to a page, or to a heading, that does not exist is an error.

Other versions that were built before stay there; ``docs_versions.py`` makes the list of them.

``requirements/site.lock`` pins MkDocs and its theme. They are installed into a folder of their own, which is kept until
the lock changes.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import docs_versions
import usage

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = "requirements/site.lock"
PACKAGES: Final = ROOT / ".site"
OUTPUT: Final = ROOT / "site"
# The page that the site begins with. It is README.md in the repository.
FRONT: Final = "README.md"
# Where files that are not in docs have their pages.
ELSEWHERE: Final = "repository"
FENCE: Final = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2[ ]*$", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
IMAGES: Final = (".png", ".svg")
# Larger files get no page.
LARGEST: Final = 200_000
# The site's own style: the button that copies a block of a console leaves out prompts, and what the commands print.
STYLE: Final = "style.css"
RULES: Final = """\
.highlight code[data-md-copying] :is(.gp, .go) { display: none; }
.highlight .gp { user-select: none; }
"""
# Part of the navigation -> the folder of docs with its pages.
PARTS: Final = {
    "Tutorial": "tutorial",
    "Gallery": "gallery",
    "Notebooks": "notebooks",
    "How to": "how-to",
    "Explanation": "explanation",
    "Reference": "reference",
}
# Pages of the repository in the navigation, and their titles.
REPOSITORY: Final = {
    "ARCHITECTURE.md": "Architecture",
    "CONTRIBUTING.md": "Contributing",
    "CHANGELOG.md": "Changelog",
}


def address(path: str) -> str:
    """Return the place of a file's page in the prepared folder. ``path`` is relative to the repository."""
    if path == FRONT:
        return "index.md"
    if path == "docs/README.md":
        return "documents.md"
    inside = path.removeprefix("docs/") if path.startswith("docs/") else f"{ELSEWHERE}/{path}"
    if path.endswith(IMAGES):
        return inside
    folder, name = posixpath.split(inside)
    if name == "README.md":
        return posixpath.join(folder, "index.md")
    return inside if name.endswith(".md") else f"{inside}.md"


def has_page(path: str) -> bool:
    """Return whether a file of the repository gets a page, or is an image of one."""
    file = ROOT / path
    return file.is_file() and file.stat().st_size <= (10 * LARGEST if path.endswith(IMAGES) else LARGEST)


def converted(text: str, path: str) -> tuple[str, list[str]]:
    """Return the Markdown of a file as MkDocs wants it, and the files of the repository that it links to.

    - Links lead to other pages. A link to a file without a page becomes its text.
    - A fence has one word: the others are for scripts/check_docs.py.
    - A list that follows a paragraph gets an empty line before it.
    """
    linked: list[str] = []

    def link(found: re.Match[str]) -> str:
        picture, label, target = found.groups()
        if re.match(r"[a-z]+:", target):
            return found[0]
        file, mark, anchor = target.partition("#")
        meant = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
        if not has_page(meant):
            return str(label)
        linked.append(meant)
        here = posixpath.relpath(address(meant), posixpath.dirname(address(path)) or ".") if file else ""
        return f"{picture}[{label}]({here}{mark}{anchor})"

    def prose(part: str) -> str:
        return _with_empty_lines(LINK.sub(link, part))

    pieces, end = [], 0
    for fence in FENCE.finditer(text):
        indent, ticks, words, body = fence.groups()
        pieces += [
            prose(text[end : fence.start()]),
            f"{indent}{ticks}{(words.split() or [''])[0]}\n{body}{indent}{ticks}",
        ]
        end = fence.end()
    return "".join([*pieces, prose(text[end:])]), linked


def _with_empty_lines(text: str) -> str:
    """Put an empty line between a paragraph and the list that follows it: Markdown of MkDocs needs it."""
    lines: list[str] = []
    item = re.compile(r"([-*]|\d+\.) ")
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        if item.match(line) and before.strip() and not item.match(before) and not before.startswith(" "):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def page(path: str) -> tuple[str, list[str]]:
    """Return the Markdown of a file's page, and the files that it links to. A file of code is shown as it is."""
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return converted(text, path)
    if path.endswith(".ipynb"):
        return converted(notebook(text), path)
    kind = {".py": "python", ".toml": "toml", ".proto": "protobuf", ".yaml": "yaml"}.get(Path(path).suffix, "text")
    return f"# {path}\n\n`````{kind}\n{text}\n`````\n", []


def notebook(text: str) -> str:
    """Return a notebook's cells as Markdown. Its outputs are not stored in the repository."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join([*parts, ""])


def prepare(folder: Path) -> list[str]:
    """Write the pages of all documents, and of what they link to, into ``folder``; return the files that they show."""
    documents = [one for kind in ("*.md", "*.ipynb") for one in sorted((ROOT / "docs").rglob(kind))]
    waiting = [FRONT, *REPOSITORY, *(str(one.relative_to(ROOT)) for one in documents)]
    shown: dict[str, None] = {}
    while waiting:
        path = waiting.pop()
        if path in shown:
            continue
        shown[path] = None
        target = folder / address(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(IMAGES):
            shutil.copy(ROOT / path, target)
            continue
        text, linked = page(path)
        target.write_text(text)
        waiting += linked
    (folder / STYLE).write_text(RULES)
    return sorted(shown)


def title(path: Path) -> str:
    """Return the first heading of a page, without marks."""
    heading = next((line for line in path.read_text().splitlines() if line.startswith("# ")), path.stem)
    return heading.removeprefix("# ").replace("`", "")


def navigation(folder: Path) -> Iterator[Mapping[str, object]]:
    """Yield the parts of the navigation. Pages of a part are in the order of their titles, tutorials of their files."""
    yield {"thalweg": "index.md"}
    for name, place in PARTS.items():
        pages = sorted((folder / place).glob("*.md"), key=lambda one: (one.name != "index.md", title(one).lower()))
        if place == "tutorial":
            pages.sort(key=lambda one: one.name)
        if pages:
            yield {name: [{title(one): f"{place}/{one.name}"} for one in pages]}
    decisions = sorted((folder / "decisions").glob("[0-9]*.md"))
    listed: list[object] = [
        {"All": "decisions/index.md"},
        *({title(one): f"decisions/{one.name}"} for one in decisions),
    ]
    yield {"Decisions": listed}
    yield {"Project": [{"All documents": "documents.md"}, *({name: address(at)} for at, name in REPOSITORY.items())]}


def configuration(folder: Path, version: docs_versions.Version) -> Mapping[str, object]:
    """Return MkDocs' configuration, which is YAML: JSON is a part of that."""
    return {
        "site_name": "thalweg",
        "docs_dir": str(folder),
        "site_dir": str(OUTPUT / version.folder),
        "copyright": version.foot,
        # The menu of versions, from versions.json in the folder above.
        "extra": {"version": {"provider": "mike"}},
        "use_directory_urls": False,
        "nav": list(navigation(folder)),
        # Nothing is loaded from another server: no fonts, no scripts.
        "theme": {
            "name": "material",
            "font": False,
            "features": [
                "navigation.tabs",
                "navigation.top",
                "navigation.indexes",
                "content.code.copy",
                "search.highlight",
            ],
            "palette": [
                {"media": "(prefers-color-scheme: light)", "scheme": "default", "primary": "blue grey"},
                {"media": "(prefers-color-scheme: dark)", "scheme": "slate", "primary": "blue grey"},
            ],
        },
        "extra_css": [STYLE],
        "plugins": ["search"],
        "markdown_extensions": [
            "tables",
            "attr_list",
            {"toc": {"permalink": True}},
            {"pymdownx.highlight": {"use_pygments": True}},
            "pymdownx.superfences",
        ],
        "not_in_nav": f"/{ELSEWHERE}/\n/decisions/",
        "validation": {"links": {"not_found": "warn", "anchors": "warn", "absolute_links": "warn"}},
    }


def install() -> None:
    """Install the locked packages, unless they are there already."""
    stamp = PACKAGES / "stamp"
    wanted = (ROOT / LOCK).read_text()
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    shutil.rmtree(PACKAGES, ignore_errors=True)
    command = (
        "uv",
        "pip",
        "install",
        "--quiet",
        "--require-hashes",
        "--no-deps",
        "--target",
        str(PACKAGES),
        "-r",
        LOCK,
    )
    subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=True)
    stamp.write_text(wanted)


def main() -> int:
    """Build the site; return the exit code of MkDocs."""
    usage.parser(__doc__).parse_args()
    install()
    version = docs_versions.of_checkout()
    with tempfile.TemporaryDirectory(prefix="thalweg-site-") as temporary:
        folder = Path(temporary) / "docs"
        shown = prepare(folder)
        settings = Path(temporary) / "mkdocs.yml"
        settings.write_text(json.dumps(configuration(folder, version), indent=2))
        environment = {**os.environ, "PYTHONPATH": str(PACKAGES), "NO_MKDOCS_2_WARNING": "1"}
        # Without --quiet, with which --strict does not see warnings.
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(settings)]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
    else:
        docs_versions.publish(OUTPUT, version)
        place = (OUTPUT / version.folder).relative_to(ROOT)
        print(f"{len(shown)} files of the repository are pages or images of {place}/index.html: {version.foot}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
