"""Exports records to other formats."""

from __future__ import annotations

import csv
import pickle
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from thalweg import extras
from thalweg.errors import PlanError, RecordError
from thalweg.outcome import Entry
from thalweg.record import perfetto, samples
from thalweg.record.columns import Row
from thalweg.record.folder import Record
from thalweg.record.rows import TABLES
from thalweg.record.tables import PARQUET, is_written, read_table, replace_table, rows, write_parquet
from thalweg.ui import strict_json


def export_all(
    records: Sequence[Record], form: str, output: Path | None = None, *, rounds: Collection[int] = ()
) -> list[Path]:
    """Write records as ``export`` does.

    For several records ``output`` is a folder, with one file or folder for each record.

    Raises what ``export`` raises, and PlanError for two records of the same name.
    """
    if len(records) == 1 or output is None:
        return [path for record in records for path in export(record, form, output, rounds=rounds)]
    names = [record.path.resolve().name for record in records]
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise PlanError(f"two records are called {twice}", "Export one of them with another --output")
    paths = []
    for name, record in zip(names, records, strict=True):
        suffix = FILES.get(form)
        try:
            (output if suffix else output / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(f"cannot make {output}: {error.strerror}", "Give another place with --output") from error
        paths += export(record, form, output / f"{name}{suffix or ''}", rounds=rounds)
    return paths


def export(record: Record, form: str, output: Path | None = None, *, rounds: Collection[int] = ()) -> list[Path]:
    """Write ``record`` as ``csv``, ``json``, ``pickle``, ``parquet`` or ``perfetto`` and return the files.

    ``output`` is a folder for csv and parquet, else a file. Without it the files go into the record. A run writes its
    Parquet tables when it ends; for a run that was killed, this function writes them. ``rounds`` are those that a trace
    for Perfetto shows, by default all. Raises PlanError for another format, or for ``rounds`` with one that has all
    rounds, RecordError if it cannot be written, and PackageError if it needs pyarrow, which is not installed.
    """
    if form not in FORMATS:
        raise PlanError(f"unknown format {form!r}", f"Give one of {', '.join(FORMATS)}")
    if rounds and form != PERFETTO:
        raise PlanError(f"{form} has all rounds", f"Leave --round out, or give --format {PERFETTO}")
    try:
        return _perfetto(record, output, rounds) if rounds else FORMATS[form](record, output)
    except OSError as error:
        raise RecordError(f"cannot export {record.path}: {error}", "Give another place with --output") from error


def _csv(record: Record, output: Path | None) -> list[Path]:
    folder = _folder(record, output)
    paths = []
    for name, content in _tables(record).items():
        path = folder / f"{name}.csv"
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, [column.name for column in TABLES[name]], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(content)
        paths.append(path)
    return paths


def _json(record: Record, output: Path | None) -> list[Path]:
    content = {
        "manifest": record.manifest,
        "plan": record.plan.model_dump(),
        **{name: list(content) for name, content in _tables(record).items()},
    }
    path = output or record.path / "record.json"
    path.write_text(strict_json.dumps(content, indent=2) + "\n")
    return [path]


def _pickle(record: Record, output: Path | None) -> list[Path]:
    """Write the pickle that FedComm's own code writes, with its keys, for scripts that read it.

    Accuracy is in percent. FedComm section III.C step 8 promises retransmissions, but FedComm's code does not write
    them. Here each round has their sum over all senders, or None if no sender counts them. A sender's count that
    arrives after its round has ended is added to a later round. A count that arrives after the last round is in no
    round; ``resent`` in the manifest has the total.
    """
    columns: dict[str, Callable[[Entry], float | None]] = {
        "training_time": lambda entry: _or(entry.get("fedcomm_seconds"), entry["seconds"]),
        "test_acc_record": lambda entry: _percent(entry["accuracy"]),
        "communication_time": lambda e: _or(e["fedcomm_communication_seconds"], e["communication_seconds"]),
        "retransmissions": _retransmissions,
    }
    content: dict[str, list[float | None]] = {name: [] for name in columns}
    for entry in record.rounds():
        for name, column in columns.items():
            content[name].append(column(entry))
    path = output or record.path / "fedcomm.pkl"
    with path.open("wb") as stream:
        pickle.dump(content, stream, protocol=4)
    return [path]


def _perfetto(record: Record, output: Path | None, rounds: Collection[int] = ()) -> list[Path]:
    path = output or record.path / "trace.json"
    perfetto.write(record, path, rounds)
    return [path]


def _or(value: float | None, other: float | None) -> float | None:
    return other if value is None else value


def _parquet(record: Record, output: Path | None) -> list[Path]:
    extras.require("a table in Parquet", "pyarrow")
    folder = _folder(record, output)
    write_parquet(folder, record.rounds(), record.journaled)
    for name in (own := _written(record)):
        if not (record.path / f"{name}{PARQUET}").exists():  # the run had no pyarrow
            replace_table(folder, name, read_table(record.path, name))
        elif folder != record.path:
            shutil.copy(record.path / f"{name}{PARQUET}", folder)
    # A run that was killed, or still runs, has the samples only as lines of JSON.
    sampled = [samples.NAME] if samples.write(record.path, folder) else []
    return [folder / f"{name}.parquet" for name in (*record.journaled, *own, *sampled)]


def _written(record: Record) -> list[str]:
    """Return the tables that the run wrote at its end, without those of the journal."""
    names = [name for name in TABLES if name not in record.journaled and is_written(record.path, name)]
    return [name for name in names if name != samples.NAME or not (record.path / samples.FILE).exists()]


def _tables(record: Record) -> dict[str, Iterable[Row]]:
    """Return the rows of all tables of the record; rows of the journal's tables are read during iteration."""
    tables: dict[str, Iterable[Row]] = {name: rows(name, record.rounds()) for name in record.journaled}
    tables |= {name: read_table(record.path, name) for name in _written(record)}
    if (record.path / samples.FILE).exists():
        tables[samples.NAME] = chain.from_iterable(samples.batches(record.path))
    return tables


def _folder(record: Record, output: Path | None) -> Path:
    folder = output or record.path
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _percent(accuracy: float | None) -> float | None:
    return None if accuracy is None else 100 * accuracy


def _retransmissions(entry: Entry) -> int | None:
    counted = [t["retransmissions"] for t in entry["transfers"] if t["retransmissions"] is not None]
    return sum(counted) if counted else None


# Formats that consist of one file, with the suffix of that file.
PERFETTO: Final = "perfetto"
FILES: Final[Mapping[str, str]] = {"json": ".json", "pickle": ".pkl", PERFETTO: ".json"}
FORMATS: Final[Mapping[str, Callable[[Record, Path | None], list[Path]]]] = {
    "csv": _csv,
    "json": _json,
    "pickle": _pickle,
    "parquet": _parquet,
    PERFETTO: _perfetto,
}
