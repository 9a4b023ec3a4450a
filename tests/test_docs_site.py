"""What the site's script makes of the documents. `make site` builds it, and checks all links and headings."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def docs_site(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("docs_site")


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("README.md", "index.md"),
        ("docs/README.md", "documents.md"),
        ("docs/how-to/bench.md", "how-to/bench.md"),
        ("docs/decisions/README.md", "decisions/index.md"),
        ("docs/images/round.svg", "images/round.svg"),
        ("ARCHITECTURE.md", "repository/ARCHITECTURE.md"),
        ("crates/pki/README.md", "repository/crates/pki/index.md"),
        ("examples/tasks.py", "repository/examples/tasks.py.md"),
    ],
)
def test_each_file_has_one_address(docs_site: Any, path: str, address: str) -> None:
    assert docs_site.address(path) == address


def test_links_lead_to_pages_and_links_without_a_page_become_text(docs_site: Any) -> None:
    text = "[a](bench.md#plan) [b](../../examples/tasks.py) [c](../../crates) [d](https://x.example) [e](#here)"
    made, linked = docs_site.converted(text, "docs/how-to/export.md")
    assert made == ("[a](bench.md#plan) [b](../repository/examples/tasks.py.md) c [d](https://x.example) [e](#here)")
    assert linked == ["docs/how-to/bench.md", "examples/tasks.py", "docs/how-to/export.md"]


def test_links_in_code_stay_and_fences_keep_their_first_word(docs_site: Any) -> None:
    text = "```console run\n$ [a](bench.md)\n```\n[b](bench.md)\n"
    made, _ = docs_site.converted(text, "docs/how-to/export.md")
    assert made == "```console\n$ [a](bench.md)\n```\n[b](bench.md)\n"


def test_a_notebook_is_a_page_of_its_cells(docs_site: Any) -> None:
    text, _ = docs_site.page("docs/notebooks/own-model.ipynb")
    assert text.startswith("# Federated averaging, cell by cell\n")
    assert "```python\nimport threading\n" in text


def test_a_list_after_a_paragraph_is_a_list(docs_site: Any) -> None:
    made, _ = docs_site.converted("Two:\n- one\n  more\n- two\n\n1. a\n2. b\n", "docs/README.md")
    assert made == "Two:\n\n- one\n  more\n- two\n\n1. a\n2. b\n"


def test_a_copied_command_has_no_prompt(docs_site: Any, tmp_path: Path) -> None:
    docs_site.prepare(tmp_path)
    settings = docs_site.configuration(tmp_path)
    (style,) = settings["extra_css"]
    rules = (tmp_path / style).read_text()
    # The theme sets this attribute while it copies; gp and go are Pygments' classes of prompts and output.
    assert "code[data-md-copying] :is(.gp, .go) { display: none; }" in rules


def test_all_documents_are_pages_and_in_the_navigation(docs_site: Any, tmp_path: Path) -> None:
    shown = docs_site.prepare(tmp_path)
    documents = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    assert documents <= set(shown)
    assert not [path for path in shown if not (tmp_path / docs_site.address(path)).is_file()]
    text = str(list(docs_site.navigation(tmp_path)))
    missing = [path for path in documents if f"'{docs_site.address(path)}'" not in text and "appendix" not in path]
    assert missing == []
