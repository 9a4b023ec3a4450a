"""The page in a real browser: it loads without errors and without a network, and the plots are there."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.report.records import make
from thalweg.report import report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
NEEDED = pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(NAMES)} is installed; see make system")
# Prevents all name lookups, because the browser itself contacts a few addresses.
OPTIONS = (
    "--headless=new", "--disable-gpu", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-extensions",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--virtual-time-budget=20000",
    "--enable-logging=stderr", "--v=0",
)  # fmt: skip
SECONDS = 240


class Loaded(NamedTuple):
    """A page in the browser: its DOM, the errors on its console, and the requested addresses."""

    dom: str
    errors: list[str]
    addresses: list[str]


def load(page: Path, folder: Path, *options: str) -> Loaded:
    """Load a page. The browser writes its files to ``folder``."""
    folder.mkdir()
    log = folder / "net.json"
    done = subprocess.run(
        [str(BROWSER), *OPTIONS, f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}", *options,
         "--dump-dom", page.as_uri()],
        env={**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Loaded(done.stdout, errors, addresses(log))


def addresses(log: Path) -> list[str]:
    """Return the requests of pages in a network log. The browser's own requests have no origin."""
    events: list[dict[str, Any]] = json.loads(log.read_text())["events"]
    params = [event["params"] for event in events if "initiator" in event.get("params", {})]
    return [str(request["url"]) for request in params if request["initiator"] != "not an origin"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("page")
    records = [
        make(folder / "wifi"),
        make(folder / "bare", train=None, lab=False, plan={"model": {"name": "payload:1MB"}}),
    ]
    report(records, folder / "r.html")
    return load(folder / "r.html", folder / "browser")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@NEEDED
def test_it_loads_without_errors(loaded: Loaded) -> None:
    assert loaded.errors == []


@NEEDED
def test_the_plots_are_there(loaded: Loaded) -> None:
    places = re.findall(r'<div class="plot[^"]*"[^>]* data-name="([a-z-]+)"', loaded.dom)
    assert places == [
        "communication-time", "accuracy-rounds", "accuracy-time", "communication-rounds", "round-time",
        "timeline", "timeline", "links",
    ]  # fmt: skip
    # The second run's timeline is folded. It is drawn only when it is unfolded.
    assert len(re.findall(r'<div class="plot js-plotly-plot"', loaded.dom)) == len(places) - 1
    assert len(re.findall(r'<svg class="main-svg"', loaded.dom)) >= len(places) - 1
    assert loaded.dom.count('class="scatterlayer') >= 3
    assert loaded.dom.count('class="point') >= 40


@NEEDED
def test_the_numbers_are_there(loaded: Loaded) -> None:
    for text in ("500.0 ms (200.0 ms to 800.0 ms)", "87.50 %", "100 (1.00 %)", "client-1 to server"):
        assert text in loaded.dom, text
    numbers = re.search(r'<script type="application/json" id="numbers">(.*?)</script>', loaded.dom, re.DOTALL)
    assert numbers is not None
    assert [run["model"] for run in json.loads(numbers[1])] == ["lenet", "payload:1MB"]


@NEEDED
def test_nothing_is_asked_of_a_network(loaded: Loaded, tmp_path: Path) -> None:
    assert loaded.addresses == []
    page = tmp_path / "asks.html"
    page.write_text('<!doctype html><img src="http://127.0.0.1:9/x">')
    assert load(page, tmp_path / "browser").addresses == ["http://127.0.0.1:9/x"], "a request is noticed"


@NEEDED
def test_what_others_wrote_does_nothing(tmp_path: Path, listener: socket.socket) -> None:
    place = f"http://127.0.0.1:{listener.getsockname()[1]}"
    evil = f'</script><script>fetch("{place}/a")</script><img src="{place}/b" onerror="document.title=1">'
    link = f'<a href="{place}/c">x</a>'
    path = make(tmp_path / "r", names=[evil, link], manifest={"network": {"profile": evil}, "kernel": evil})
    report([path], tmp_path / "r.html")
    page = load(tmp_path / "r.html", tmp_path / "browser")
    assert page.errors == []
    assert "<img" not in page.dom
    shown = re.sub(r"<script.*?</script>", "", page.dom, flags=re.DOTALL)
    assert not re.search(r"<a [^>]*http", shown)
    assert "&lt;img src=" in shown
    assert page.addresses == []
    with pytest.raises(BlockingIOError):
        listener.accept()


@NEEDED
def test_the_policy_keeps_out_what_would_get_in(tmp_path: Path, listener: socket.socket) -> None:
    place = f"http://127.0.0.1:{listener.getsockname()[1]}"
    page = tmp_path / "r.html"
    report([make(tmp_path / "r")], page)
    more = f'<script>document.title="run"</script><img src="{place}/x">'
    page.write_text(page.read_text().replace("<header>", f"{more}<header>", 1))
    changed = load(page, tmp_path / "browser")
    assert len(changed.errors) >= 2
    assert all("Content Security Policy" in error for error in changed.errors)
    assert "<title>run" not in changed.dom
    with pytest.raises(BlockingIOError):
        listener.accept()


@NEEDED
def test_it_is_readable_in_the_dark(loaded: Loaded, tmp_path: Path) -> None:
    report([make(tmp_path / "r")], tmp_path / "r.html")
    dark = load(tmp_path / "r.html", tmp_path / "browser", "--force-dark-mode")
    assert dark.errors == []
    assert brightness(loaded) < 200
    assert brightness(dark) > 500


def brightness(page: Loaded) -> int:
    """Return the sum of red, green and blue of an axis' title."""
    match = re.search(r'<text class="xtitle"[^>]*fill: rgb\((\d+), (\d+), (\d+)\)', page.dom)
    assert match is not None
    return sum(int(part) for part in match.groups())
