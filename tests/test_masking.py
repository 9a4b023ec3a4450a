"""The page on masking lists every constant of the code, with its value."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CODE: Final = ROOT / "crates/masking/src"
PROGRAMS: Final = ROOT / "crates/ebpf/programs"
PAGE: Final = ROOT / "docs/explanation/masking.md"
CONSTANT: Final = re.compile(r"^\s*(?:pub(?:\([a-z]+\))? )?const (\w+): [^=]+? = (.+?);", re.MULTILINE)
DEFAULT: Final = re.compile(r"^impl Default for (\w+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
TIME: Final = re.compile(r"Time::from_(millis|secs)\((.+)\)")
# Types of settings. Other types with a default are state, which begins empty.
SETTINGS: Final = ("Config", "DelaySettings", "PaperSettings", "Policy", "Reorder", "Undo")
# Fields without a row: the ports to listen at, and structures whose own fields have rows.
PARTS: Final = {
    "Config.ports",
    "Config.policy",
    "Config.rate",
    "Config.reorder",
    "Config.undo",
    "Policy.critical",
    "Policy.budgets",
    "Policy.owed",
}


def value(expression: str) -> tuple[str, str | None]:
    """Return a value in the form of the page, with the unit that the code names, if it names one."""
    match = TIME.fullmatch(expression.strip())
    return (match[2], {"millis": "ms", "secs": "s"}[match[1]]) if match else (expression.strip(), None)


def without_tests(path: Path) -> str:
    return path.read_text().partition("#[cfg(test)]\nmod tests {")[0]


def sources() -> dict[str, str]:
    files = [path for path in sorted(CODE.rglob("*.rs")) if path.name != "tests.rs"]
    return {str(path.relative_to(CODE)): without_tests(path) for path in files}


def constants() -> dict[tuple[str, str], tuple[str, str | None]]:
    return {
        (file, name): value(expression)
        for file, text in sources().items()
        for name, expression in CONSTANT.findall(text)
    }


def program_constants() -> dict[tuple[str, str], tuple[str, str | None]]:
    """Return the constants of the eBPF back end: its model of a sender, and its bounds."""
    constants: dict[tuple[str, str], tuple[str, str | None]] = {}
    for name in ("recovery.h", "flow.h"):
        for body in re.findall(r"^enum \{(.*?)\};", (PROGRAMS / name).read_text(), re.MULTILINE | re.DOTALL):
            pairs = re.findall(r"(\w+) = ([^,]+?)\s*(?:,|$)", body)
            constants |= {(f"ebpf/{name}", constant): (expression, None) for constant, expression in pairs}
    return constants


def fields(body: str) -> dict[str, str]:
    """Return the fields of the first struct literal in ``body``, and of local variables that it names."""
    named = dict(
        pair
        for names, values in re.findall(r"let \(([\w, ]+)\) = \((.+)\);", body)
        for pair in zip(names.split(", "), values.split(", "), strict=True)
    )
    literal = re.split(r"(?<!-> )Self \{", body, maxsplit=1)[1]
    fields_found, depth, start = {}, 0, 0
    for at, character in enumerate(literal):
        depth += {"{": 1, "(": 1, "[": 1, "}": -1, ")": -1, "]": -1}.get(character, 0)
        if (character == "," and depth == 0) or depth < 0:
            name, _, expression = literal[start:at].strip().partition(": ")
            if name:
                fields_found[name] = expression or named[name]
            start = at + 1
        if depth < 0:
            break
    return fields_found


def defaults() -> dict[tuple[str, str], tuple[str, str | None]]:
    constants: dict[tuple[str, str], str] = {}
    for file, text in sources().items():
        for kind, body in DEFAULT.findall(text):
            if kind in SETTINGS:
                constants |= {(file, f"{kind}.{name}"): expression for name, expression in fields(body).items()}
    undo = fields(constants[("config.rs", "Config.undo")].replace("Undo {", "Self {", 1))
    constants |= {("config.rs", f"Undo.{name}"): expression for name, expression in undo.items()}
    return {key: value(expression) for key, expression in constants.items() if key[1] not in PARTS}


def rows() -> list[list[str]]:
    text = PAGE.read_text().partition("\n## Constants\n")[2].partition("\n## Words\n")[0]
    lines = [line for line in text.splitlines() if line.startswith("|") and "`" in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_row_has_a_unit_a_reason_and_a_source() -> None:
    for row in rows():
        assert len(row) == 6, row
        assert all(row), row


def test_the_page_lists_what_the_code_has() -> None:
    wanted = constants() | defaults() | program_constants()
    assert min(len(constants()), len(defaults()), len(program_constants())) >= 20
    listed = {(file, name.strip("`")): (expression.strip("`"), unit) for file, name, expression, unit, _, _ in rows()}
    assert set(listed) == set(wanted)
    for key, (expression, unit) in wanted.items():
        assert listed[key][0] == expression, key
        assert unit in (None, listed[key][1]), key


def test_values_are_read_as_the_page_writes_them() -> None:
    assert value("Time::from_millis(200)") == ("200", "ms")
    assert value("Time::from_secs(24 * 3600)") == ("24 * 3600", "s")
    assert value("65_535 - 120") == ("65_535 - 120", None)
    body = "let (least, most) = (f(1), 2);\nSelf { a: Some(3), least, most, b: B { c: 1 } }"
    assert fields(body) == {"a": "Some(3)", "least": "f(1)", "most": "2", "b": "B { c: 1 }"}
