"""What the site's script makes of the documents. `make site` builds it, and checks all links and headings."""

from __future__ import annotations

import importlib
import json
import shutil
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
    settings = docs_site.configuration(tmp_path, docs_site.docs_versions.version("0.2.0", "", []))
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


def test_a_release_has_a_folder_of_its_own_and_all_other_commits_share_one(docs_site: Any) -> None:
    of = docs_site.docs_versions.version
    assert of("0.2.0", "abc", ["other", "v0.2.0"]) == of("0.2.0", "abc", ["v0.2.0"])
    released, other = of("0.2.0", "abc", ["v0.2.0"]), of("0.2.0", "abc", ["v0.1.0"])
    assert (released.folder, released.foot) == ("0.2.0", "thalweg 0.2.0, commit abc")
    assert (other.folder, other.foot) == ("dev", "thalweg after 0.2.0, not released, commit abc")
    settings = docs_site.configuration(ROOT / "docs", other)
    assert settings["copyright"] == other.foot
    assert Path(settings["site_dir"]).name == "dev"


def built(docs_site: Any, site: Path, *numbers: str) -> list[Any]:
    """Publish versions, the last one at last; return the list of versions."""
    versions = docs_site.docs_versions
    for number in numbers:
        made = versions.version(number.removesuffix("+"), "", [] if number.endswith("+") else [f"v{number}"])
        for page in ("index.html", "how-to/bench.html"):
            (site / made.folder / page).parent.mkdir(parents=True, exist_ok=True)
            (site / made.folder / page).write_text(number)
        versions.publish(site, made)
    listed: list[Any] = json.loads((site / "versions.json").read_text())
    return listed


def test_the_menu_has_releases_from_the_newest_to_the_oldest_and_then_development(
    docs_site: Any, tmp_path: Path
) -> None:
    listed = built(docs_site, tmp_path, "0.9.0", "0.10.0-rc.1", "0.10.0", "0.10.0+", "0.9.1")
    assert [(one["version"], one["aliases"]) for one in listed] == [
        ("0.10.0", ["latest"]),
        ("0.10.0-rc.1", []),
        ("0.9.1", []),
        ("0.9.0", []),
        ("dev", []),
    ]
    assert (tmp_path / "0.9.0" / "index.html").read_text() == "0.9.0", "earlier versions stay"


def test_latest_leads_to_the_same_page_of_the_newest_release(docs_site: Any, tmp_path: Path) -> None:
    built(docs_site, tmp_path, "0.1.0", "0.2.0")
    assert 'url=0.2.0/index.html"' in (tmp_path / "index.html").read_text()
    assert 'url=../0.2.0/index.html"' in (tmp_path / "latest" / "index.html").read_text()
    assert 'url=../../0.2.0/how-to/bench.html"' in (tmp_path / "latest" / "how-to" / "bench.html").read_text()


def test_without_a_release_the_site_leads_to_development(docs_site: Any, tmp_path: Path) -> None:
    assert [one["version"] for one in built(docs_site, tmp_path, "0.1.0+")] == ["dev"]
    assert 'url=dev/index.html"' in (tmp_path / "index.html").read_text()
    assert not (tmp_path / "latest").exists()


def test_a_version_that_was_removed_leaves_the_menu(docs_site: Any, tmp_path: Path) -> None:
    built(docs_site, tmp_path, "0.1.0")
    shutil.rmtree(tmp_path / "0.1.0")
    assert [one["version"] for one in built(docs_site, tmp_path, "0.2.0")] == ["0.2.0"]
