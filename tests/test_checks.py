"""The checks of `make lint` and `make docs-check` find the faults that they look for."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {"MIT", "Apache-2.0"}
HASH = "a" * 64


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return import_module


@pytest.mark.parametrize(
    ("expression", "met"),
    [
        ("MIT", True),
        ("GPL-3.0", False),
        ("GPL-3.0 OR MIT", True),
        ("GPL-3.0 AND MIT", False),
        ("GPL-2.0 OR MIT AND GPL-3.0", False),
        ("MIT AND (GPL-2.0 OR Apache-2.0)", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-2.0 WITH Classpath-exception-2.0", False),
        ("MIT/Apache-2.0", True),
    ],
)
def test_licence_expressions(script: Any, expression: str, met: bool) -> None:
    assert script("spdx").is_met(expression, ALLOWED) is met


@pytest.mark.parametrize("expression", ["", "MIT OR", "(MIT", "MIT GPL-3.0", "MIT)", "AND MIT", "MIT & Apache-2.0"])
def test_what_is_no_licence_expression(script: Any, expression: str) -> None:
    with pytest.raises(script("spdx").SpdxError):
        script("spdx").is_met(expression, ALLOWED)


def test_licences_that_are_not_allowed_or_not_known(script: Any) -> None:
    faults = script("check_licences").faults_of(
        "crate", {"a 1": "MIT", "b 1": "GPL-3.0-only", "c 1": None, "d 1": "MIT ("}
    )
    assert [fault.split(":")[0] for fault in faults] == ["crate b 1", "crate c 1", "crate d 1"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("--index-url somewhere", "names a source"),
        ("a==1 @ git+ssh", "names a source"),
        (f"a>=1 \\\n    --hash=sha256:{HASH}", "is not pinned"),
        ("a==1", "has no hash"),
    ],
)
def test_faults_of_a_lock_of_packages(script: Any, line: str, fault: str) -> None:
    good = f"b==1 \\\n    --hash=sha256:{HASH}\n    # via c\n"
    assert script("check_locks").python_faults(good) == []
    assert any(fault in one for one in script("check_locks").python_faults(f"{good}{line}\n"))


def test_faults_of_a_lock_of_crates(script: Any) -> None:
    registry = "registry+https://host.example/rust-lang/index"
    good = {"name": "a", "version": "1", "source": registry, "checksum": HASH}
    bad = [{**good, "source": "git+https://host.example/a"}, {**good, "checksum": ""}, {"name": "a", "version": "1"}]
    faults = script("check_locks").rust_faults
    assert faults({"package": [good, {"name": "thalweg-wire", "version": "1"}]}) == []
    assert [len(faults({"package": [package]})) for package in bad] == [1, 1, 1]


@pytest.mark.parametrize(
    ("locked", "differing"),
    [
        (["b", "c"], None),
        (["b", "c", "d 1.0.0"], None),
        (["b"], "c"),
        (["b", "c", "e"], "e"),
    ],
)
def test_a_stale_lock_of_our_crates(script: Any, locked: list[str], differing: str | None) -> None:
    manifest = {
        "dependencies": {"b": "1", "d": {"version": "1", "optional": True}},
        "target": {"cfg(unix)": {"dependencies": {"c": "1"}}},
        "dev-dependencies": {"f": "1"},
    }
    lock = {"package": [{"name": "thalweg-a", "dependencies": locked}, {"name": "b"}]}
    faults = script("check_locks").stale(lock, {"thalweg-a": manifest})
    assert faults == ([] if differing is None else [f"thalweg-a has other dependencies by now: {differing}"])


@pytest.mark.parametrize(
    ("version", "requirement", "holds"),
    [
        ("0.23.4", ">= 0.23.5", False),
        ("0.22.4", ">= 0.22.4, < 0.23.0", True),
        ("1.2.3", "^1.1", True),
        ("2.0.0", "^1.1", False),
        ("0.3.0", "^0.2.3", False),
        ("0.0.4", "^0.0.3", False),
        ("1.3.0", "~1.2", False),
        ("1.0.0-rc.1", ">= 1.0.0", False),
        ("1.10.0", "> 1.9.9", True),
    ],
)
def test_versions_in_advisories(script: Any, version: str, requirement: str, holds: bool) -> None:
    assert script("check_advisories").holds(version, requirement) is holds


def test_an_advisory_concerns_versions_that_are_not_repaired(script: Any, tmp_path: Path) -> None:
    folder = tmp_path / "crates" / "a"
    folder.mkdir(parents=True)
    front = '[advisory]\nid = "X-1"\npackage = "a"\n[versions]\npatched = [">= 1.2"]\nunaffected = ["< 1.0"]'
    (folder / "X-1.md").write_text(f"```toml\n{front}\n```\n\n# Bad\n")
    (folder / "X-2.md").write_text('```toml\n[advisory]\nid = "X-2"\nwithdrawn = "2026-01-01"\n```\n')
    checks = script("check_advisories")
    (advisory,) = checks.advisories(tmp_path, "a")
    assert [checks.concerns(version, advisory) for version in ("0.9.0", "1.1.0", "1.2.0")] == [False, True, False]


def test_impure_code_is_found_and_comments_are_not(script: Any) -> None:
    purity = script("check_purity")
    text = 'let a = "Instant"; // Instant\n/* tokio::\n */ let b = Instant::now();\n#[cfg(test)]\nmod tests { rand }\n'
    code = purity.code(text)
    assert code.splitlines()[2].strip() == "let b = Instant::now();"
    assert sum(bool(purity.re.search(pattern, code)) for pattern in purity.IMPURE) == 1


def test_only_dev_dependencies_name_crates_for_tests(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    purity = script("check_purity")
    monkeypatch.setattr(purity, "ROOT", tmp_path)
    for section in ("dependencies", "dev-dependencies"):
        (tmp_path / section).mkdir()
        (tmp_path / section / "Cargo.toml").write_text(f"[{section}]\nthalweg-testkit.workspace = true\n")
    (fault,) = purity.for_tests([tmp_path / "dependencies", tmp_path / "dev-dependencies"])
    assert fault.startswith("dependencies/Cargo.toml: ")
    assert "thalweg-testkit" in fault


def test_retired_words_are_found_in_every_spelling_of_a_name(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = script("check_words")
    monkeypatch.setattr(checks, "RETIRED", (checks.Word("ox", "bull", r"^farm\.txt:|zodiac"),))
    (tmp_path / "a.py").write_text("an_ox\nbox, oxen\nclass OxCart: OX = 1\nthe ox of the zodiac\n")
    (tmp_path / "farm.txt").write_text("ox\n")
    (tmp_path / "ox.md").write_text("\n")
    assert list(checks.faults(tmp_path, ["a.py", "farm.txt", "gone.py", "ox.md"])) == [
        "a.py:1: ox -> bull",
        "a.py:3: Ox -> bull",
        "ox.md:name: ox -> bull",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[a](none.md)", "leads nowhere"),
        ("[a](#none)\n\n# Some", "no heading #none"),
        ("```console\n$ thalweg rum\n```", "no command rum"),
        ("```console\n$ thalweg run --model vgg5 \\\n    --modle x\n```", "run has no option --modle"),
        ("```console\n$ make tset\n```", "no target tset"),
        ("```console\n$ thalweg lab exec --hots a -- nosuch --host\n```", "lab exec has no option --hots"),
        ("```toml plan\n[job]\nrunds = 1\n```", "unknown key 'runds'"),
        ("```toml bench\n[matrix]\ntransprot = ['tcp']\n```", "'transprot', which is no axis"),
        ("<!-- begin plan -->\n| old |\n<!-- end plan -->", "out of date"),
        ("| clocks | <!-- begin clocks -->`real`<!-- end clocks --> |", "out of date"),
        ("<!-- begin clokcs --><!-- end clokcs -->", "nothing makes clokcs"),
        ("| clocks | <!-- begin clocks -->`real` |", "<!-- begin clocks --> has no counterpart"),
        ("```console run\n$ false\n```", "ended with 1"),
        ("```python run\nraise SystemExit(3)\n```", "ended with 3"),
    ],
)
def test_faults_of_a_document(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, fault: str
) -> None:
    docs = script("check_docs")
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    (tmp_path / "Makefile").write_text("test: setup\n")
    path = tmp_path / "page.md"
    path.write_text(text + "\n")
    faults = [*docs.made_faults(path, write=False), *docs.link_faults(path), *docs.run_faults(path)]
    for block in docs.blocks(path):
        of_plans = {"plan": docs.plan_faults, "bench": docs.bench_faults}
        faults += [*docs.command_faults(block), *of_plans.get(" ".join(block.words[1:]), lambda _: ())(block)]
    assert len(faults) == 1
    assert fault in faults[0]


def test_every_part_that_is_made_is_in_a_document(script: Any) -> None:
    shown = {
        name for path in script("check_docs").documents() for name in re.findall(r"begin (\w+) -->", path.read_text())
    }
    assert set(script("docs_tables").GENERATED) == shown


@pytest.mark.parametrize(
    ("line", "counted"),
    [
        ("test result: ok. 12 passed; 1 failed; 2 ignored; 0 measured", {"passed": 12, "failed": 1, "ignored": 2}),
        ("===== 3 passed, 1 skipped in 2.50s =====", {"passed": 3, "skipped": 1}),
        ("1 failed, 3 passed, 2 errors in 61.00s (0:01:01)", {"failed": 1, "passed": 3, "error": 2}),
        ("SKIPPED [1] tests/x.py:3: 4 passed the gate", {}),
    ],
)
def test_closing_lines_are_counted(script: Any, line: str, counted: dict[str, int]) -> None:
    runner = script("run_tests")
    counter = runner.Counter()
    (runner.count_rust if "result" in line else runner.count_python)(line, counter)
    assert dict(counter) == counted


def test_a_failed_suite_is_listed_with_what_failed(script: Any) -> None:
    runner = script("run_tests")
    lines = [
        "test a ... ok",
        "test b ... FAILED",
        "error: 1 target failed:",
        "    `-p thalweg-tcp --test conformance`",
        "  process didn't exit successfully: `target/debug/deps/x` (signal: 6, SIGABRT: process abort signal)",
        "FAILED tests/x.py::test_y - assert 0",
    ]
    program = "import sys; [print(x, file=s) for x, s in zip(sys.argv[1:], 3 * [sys.stdout, sys.stderr])]; sys.exit(3)"
    command = [sys.executable, "-u", "-c", program, *lines]
    failures = [line.strip() for line in lines[1:]]
    assert runner.run("tests of x", command, runner.count_rust, {}) == {"tests of x": failures}
    assert runner.run("nothing", [sys.executable, "-c", ""], runner.count_nothing, {}) == {}


SCRIPTS = [path for path in sorted((ROOT / "scripts").glob("*.py")) if "__main__" in path.read_text()]
# The wrapper of rustc passes on all arguments. The last one is what the others print their help with.
WITHOUT_HELP = ("rustc_clippy.sh", "usage.sh")
SHELL = [path for path in sorted((ROOT / "scripts").glob("*.sh")) if path.name not in WITHOUT_HELP]


def printed(*command: str) -> str:
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return " ".join(done.stdout.split())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_prints_its_help_and_does_nothing_else(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    out = printed(sys.executable, str(path))
    assert out.startswith(f"usage: {path.name} [-h]")
    assert text.splitlines()[0] in out


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_a_shell_script_prints_the_comment_that_it_begins_with(path: Path) -> None:
    comment = path.read_text().splitlines()[1].removeprefix("# ")
    assert printed(str(path)).startswith(comment)
