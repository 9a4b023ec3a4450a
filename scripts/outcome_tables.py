"""Makes python/thalweg/outcome/tables.py: the dataclasses of outcome/core.py as TypedDicts, field by field.

Without arguments it prints the module. ``--write`` writes it. tests/test_outcome_tables.py fails while the file is not
what this makes.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import usage

OUTCOME: Final = Path(__file__).parents[1] / "python" / "thalweg" / "outcome"
TABLES: Final = OUTCOME / "tables.py"
HEAD: Final = '''"""Outcomes in the form that users and records get: JSON objects with known keys.

scripts/outcome_tables.py makes this file of ``thalweg.outcome.core``. Change that, and run
``.venv/bin/python scripts/outcome_tables.py --write``.
"""

from __future__ import annotations

from typing import TypedDict, final

from typing_extensions import NotRequired

from thalweg.outcome.core import AppMetrics
'''


def module() -> str:
    """Return the text of the module."""
    kinds = [kind for kind in vars(source()).values() if is_dataclass(kind) and isinstance(kind, type)]
    return "\n\n".join([HEAD, *("\n".join(lines(kind)) + "\n" for kind in kinds)])


def source() -> ModuleType:
    """Return the module of the dataclasses. Its package cannot be imported while tables.py lacks a name."""
    spec = spec_from_file_location("outcome_core", OUTCOME / "core.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no core.py in {OUTCOME}")
    found = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def lines(kind: type[Any]) -> Iterator[str]:
    """Yield the lines of the TypedDict of a dataclass, with the first line of its docstring."""
    # A checker can tell apart the kinds of a fold by their keys only if no other class may add keys.
    yield from ["@final"] if kind.__name__.endswith("Fold") else []
    yield f"class {kind.__name__}(TypedDict):"
    yield f'    """{(inspect.getdoc(kind) or "").splitlines()[0]}"""'
    yield ""
    yield from (f"    {one.name}: {type_of(one)}" for one in fields(kind))


def type_of(field: Field[Any]) -> str:
    """Return a field's type in JSON. ``wire.sparse`` leaves out a field whose default is None while it is None."""
    text = re.sub(r"(?:tuple|Sequence)\[(\w+)(?:, \.\.\.)?\]", r"list[\1]", str(field.type))
    text = re.sub(r"Annotated\[object, (\w+)\]", r"\1", text)
    return f"NotRequired[{text.removesuffix(' | None')}]" if field.default is None else text


def main() -> None:
    """Print the module, or write it."""
    parser = usage.parser(__doc__)
    parser.add_argument("--write", action="store_true", help="write the module instead")
    if parser.parse_args().write:
        TABLES.write_text(module())
    else:
        print(module(), end="")


if __name__ == "__main__":
    main()
