"""Installs a wheel as a user does, into new virtual environments, and uses it there: test_wheel.py WHEEL [--locked].

The first environment has the base alone. Each ``--extra NAME`` (or ``NAME,NAME``) gets one of its own. Programs see no
compiler: PATH has the environment's folder only. With ``--locked`` dependencies have the versions of the lock files.
Prints sizes and times. If a step fails or a bound is exceeded, the exit code is 1 and the output says what failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from email.parser import BytesParser
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
REQUIREMENTS: Final = ROOT / "requirements"
# Bounds: bytes of the wheel; packages that its base names, and that are installed with it; bytes of the base when it is
# installed; seconds from the beginning of an installation without downloads to the end of the first round.
LARGEST: Final = 25_000_000
MOST_NAMED: Final = 10
MOST_INSTALLED: Final = 20
LARGEST_BASE: Final = 200_000_000
MOST_SECONDS: Final = 60
# Seconds after which a program that hangs is ended.
SECONDS: Final = 600
# The library that unwinds threads (see wheel.sh), and files of the package that are not Python code.
UNWINDER: Final = b"libgcc_s.so.1"
DATA: Final = ("thalweg/_core.abi3.so", "thalweg/py.typed", "thalweg/lab/guest/build.sh")
PAYLOAD: Final = ("--model", "payload:8MiB", "--clients", "4", "--rounds", "3")
APP: Final = """
import numpy as np


class Line:
    def model(self):
        return {"slope": np.zeros(1)}

    def train_data(self):
        return np.linspace(-1, 1, 32)

    def train(self, model, data, config):
        for _ in range(20):
            model["slope"] -= 0.3 * 2 * np.mean((model["slope"] * data - 2 * data) * data)
        return len(data), {}

    def test_data(self):
        return np.linspace(0, 1, 8)

    def evaluate(self, model, data):
        return {"loss": float(np.mean((model["slope"] * data - 2 * data) ** 2))}
"""
# At its end a thread is still in the core. Python ends that thread, by unwinding it in some versions.
LEAVES: Final = """
import threading

import line
import thalweg

with thalweg.Server(line.Line(), clients=1) as server:
    client = thalweg.Client(line.Line(), server.address, name="one", data=line.Line().train_data())
    threading.Thread(target=client.run, daemon=True).start()
    print([done.number for done in thalweg.rounds(server, 2)])
"""
LEAVES_TIMES: Final = 10


def main() -> int:
    """Check the wheel that the command line names. Returns 1 if it has faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--locked", action="store_true")
    parser.add_argument("--extra", action="append", default=[], metavar="NAME[,NAME]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="thalweg-wheel-") as folder:
        faults = check(Wheel(options.wheel.resolve(), Path(folder), locked=options.locked), options.extra)
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


def check(wheel: Wheel, extras: list[str]) -> list[str]:
    """Check a wheel, print each step, and return the faults."""
    faults = of_file(wheel.path)
    environment = wheel.installed("base")
    faults += of_base(environment)
    for extra in extras:
        environment = wheel.installed(extra.replace(",", "-"), f"[{extra}]")
        for name in extra.split(","):
            faults += [f"with the extra {extra}: {fault}" for fault in EXTRAS.get(name, nothing)(environment)]
    return faults


def of_file(path: Path) -> list[str]:
    """Return the faults of the file: its size, its name, what it lacks and what it requires."""
    size, archive = path.stat().st_size, zipfile.ZipFile(path)
    names = set(archive.namelist())
    (metadata,) = (name for name in names if re.fullmatch(r"thalweg-[^/]*\.dist-info/METADATA", name))
    requires = BytesParser().parsebytes(archive.read(metadata)).get_all("Requires-Dist") or []
    base = [need for need in requires if "extra ==" not in need]
    print(f"{path.name}: {size / 1e6:.1f} MB; its base requires {len(base)} packages")
    faults = [f"it has {size} bytes, more than {LARGEST}"] if size > LARGEST else []
    faults += [f"it lacks {name}" for name in DATA if name not in names]
    faults += [] if UNWINDER in archive.read(DATA[0]) else ["its core does not use libgcc to unwind threads"]
    faults += [] if "-abi3-" in path.name else [f"it is not abi3: {path.name}"]
    return faults + ([f"its base requires {len(base)} packages: {base}"] if len(base) > MOST_NAMED else [])


class Environment:
    """A virtual environment in which the wheel is installed, and a folder to work in."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "env" / "bin" / "python"
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        # How many packages it has, their bytes, and the seconds that installing them took without downloads.
        self.packages, self.bytes, self.seconds = 0, 0, 0.0

    def thalweg(self, *arguments: str, fails: bool = False) -> str:
        """Run ``thalweg``; return its standard output, or its standard error if it has to fail."""
        return run(self.work, str(self.python.parent / "thalweg"), *arguments, path=self.python.parent, fails=fails)

    def job(self, *arguments: str) -> dict[str, Any]:
        """Run a job and return its result."""
        result: dict[str, Any] = json.loads(self.thalweg("run", *arguments, "--json"))
        return result


class Wheel:
    """The wheel, and the folder in which environments are made."""

    def __init__(self, path: Path, folder: Path, *, locked: bool) -> None:
        self.path, self._folder, self._locked = path, folder, locked

    def installed(self, name: str, extras: str = "") -> Environment:
        """Install the wheel twice, the second time without downloads, and return the second environment."""
        times = []
        for attempt, more in (("first", []), (name, ["--offline"])):
            began = time.monotonic()
            environment = Environment(self._folder / f"{name}-{attempt}")
            self._install(environment, extras, more)
            times.append(time.monotonic() - began)
        packages = json.loads(uv(self._folder, "pip", "list", "--format", "json", "--python", str(environment.python)))
        size = size_of(environment.python.parents[1])
        print(
            f"{name}: {len(packages)} packages, {size / 1e6:.0f} MB, installed in {times[0]:.1f} s, "
            f"without downloads in {times[1]:.1f} s"
        )
        environment.packages, environment.bytes, environment.seconds = len(packages), size, times[1]
        return environment

    def _install(self, environment: Environment, extras: str, more: list[str]) -> None:
        locks = [REQUIREMENTS / "dev.lock", *([REQUIREMENTS / "extras.lock"] if extras else [])]
        pins = [word for lock in locks for word in ("--constraint", str(lock))] if self._locked else []
        uv(self._folder, "venv", "--quiet", "--python", sys.executable, str(environment.python.parents[1]))
        chosen = ["--only-binary", ":all:", "--override", str(REQUIREMENTS / "overrides.txt"), *pins, *more]
        what = f"thalweg{extras} @ {self.path.as_uri()}"
        uv(self._folder, "pip", "install", "--quiet", "--python", str(environment.python), *chosen, what)


def of_base(environment: Environment) -> list[str]:
    """Run a user's first commands with the base alone, and return the faults."""
    place = run(
        environment.work, str(environment.python), "-I", "-c", "import thalweg; print(thalweg.__file__)"
    ).strip()
    began = time.monotonic()
    result = environment.job(*PAYLOAD)
    seconds = time.monotonic() - began
    total = environment.seconds + seconds
    print(f"thalweg run: {seconds:.1f} s; from the beginning of the installation {total:.1f} s")
    (environment.work / "line.py").write_text(APP)
    trained = environment.job("--app", "line.py:Line", "--clients", "2", "--rounds", "3")
    for _ in range(LEAVES_TIMES):
        run(environment.work, str(environment.python), "-c", LEAVES)
    said = environment.thalweg("report", result["record"], fails=True)
    wrong = {
        f"thalweg is {place}, not what was installed": not Path(place).is_relative_to(environment.python.parents[1]),
        f"{environment.packages} packages are installed": environment.packages > MOST_INSTALLED,
        f"the base has {environment.bytes} bytes": environment.bytes > LARGEST_BASE,
        f"installation and first rounds took {total:.0f} s": total > MOST_SECONDS,
        "thalweg doctor found nothing": not json.loads(environment.thalweg("doctor", "--json"))["checks"],
        f"thalweg run had {len(result['rounds'])} rounds of 3": len(result["rounds"]) != 3,
        f"there is no record in {result['record']}": not (
            environment.work / result["record"] / "manifest.json"
        ).exists(),
        "the app of NumPy arrays did not learn": trained["rounds"][-1]["loss"] > 1e-3,
        f"thalweg report does not name its extra: {said}": "thalweg[report]" not in said,
    }
    return [fault for fault, is_so in wrong.items() if is_so]


def nothing(_environment: Environment) -> list[str]:
    """Return no faults: nothing more is tried with this extra."""
    return []


def of_report(environment: Environment) -> list[str]:
    """Run a job on a random graph and make its page."""
    record = environment.job("--graph", "3-regular", "--clients", "4", "--rounds", "2", "--model", "payload:64KiB")[
        "record"
    ]
    environment.thalweg("report", record, "--figures", "figures")
    found = {
        "no page": not (environment.work / "report.html").is_file(),
        "no figures": not list((environment.work / "figures").glob("*.png")),
        "no Parquet tables": not (environment.work / record / "rounds.parquet").is_file(),
    }
    return [fault for fault, is_so in found.items() if is_so]


def of_torch(environment: Environment) -> list[str]:
    """Train a network; the extra ``data`` is installed too."""
    rounds = environment.job("--model", "lenet", "--data", "digits", "--clients", "2", "--rounds", "1")["rounds"]
    return [] if rounds[0]["accuracy"] is not None else ["no accuracy"]


def imported(*packages: str) -> Callable[[Environment], list[str]]:
    """Return a check that imports packages."""

    def check(environment: Environment) -> list[str]:
        run(environment.work, str(environment.python), "-I", "-c", f"import thalweg, {', '.join(packages)}")
        return []

    return check


# The checks of extras, by name.
EXTRAS: Final[Mapping[str, Callable[[Environment], list[str]]]] = {
    "report": of_report,
    "torch": of_torch,
    "flower": imported("thalweg.flower.grid", "flwr"),
    "lm": imported("thalweg.models.gpt2", "peft", "transformers"),
    "ray": imported("ray"),
}


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder; links are not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def uv(folder: Path, *arguments: str) -> str:
    """Run this environment's uv and return what it prints."""
    return run(folder, sys.executable, "-m", "uv", *arguments)


def run(folder: Path, *command: str, path: Path | None = None, fails: bool = False) -> str:
    """Run a program in a folder, without this environment's PYTHONPATH and similar variables; return what it prints.

    With ``path`` that is the only folder of PATH. With ``fails`` the program has to fail, and its errors are returned.
    """
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {} if path is None else {"PATH": str(path)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    if bool(done.returncode) != fails:
        said = (done.stderr or done.stdout).strip()
        raise SystemExit(f"error: {' '.join(command)} ended with {done.returncode}: {said}")
    return done.stderr if fails else done.stdout


if __name__ == "__main__":
    sys.exit(main())
