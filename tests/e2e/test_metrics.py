"""``--metrics``: Prometheus reads a run's numbers during the run."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from tests.e2e.conftest import Program

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="workers share memory as Linux alone does"),
]
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed: uv pip install prometheus-client")


PLAN: Final = """
[job]
clients = 2
rounds = 10000

[model]
name = "payload:64KiB"

[transport]
url = "tcp://127.0.0.1:0"

[aggregation]
shape = "tree"

[tree]
top = "dedicated"

[nodes]
count = 2
"""


def scraped(url: str) -> dict[str, float]:
    with urlopen(url, timeout=60) as answer:  # noqa: S310 - the address is that of a run on this machine
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def test_a_node_that_is_started_by_hand_is_scraped(start: Callable[..., Program], tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(PLAN)
    server = start("server", "job.toml")
    parent = server.until("listening on").split("listening on ")[1].split()[0]
    node = start("node", "tcp://127.0.0.1:0", "--parent", parent, "--clients", "1", "--name", "west", "--metrics", "0")
    east = start("node", "tcp://127.0.0.1:0", "--parent", parent, "--clients", "1", "--name", "east")
    url = node.until("metrics: http://127.0.0.1:").split()[-1]
    listening = node.until("listening on").split("listening on ")[1].strip()
    scrape = scraped(url)
    assert (scrape["thalweg_rounds_total"], scrape["thalweg_clients"]) == (0, 0)
    assert scrape['thalweg_workers{node="west"}'] == 1
    start("client", listening, "--name", "a")
    start("client", east.until("listening on").split("listening on ")[1].strip(), "--name", "b")
    server.until("round 4/")  # a node may count a round only after the server has reported its end
    scrape = scraped(url)
    assert scrape["thalweg_rounds_total"] >= 3
    assert scrape['thalweg_updates_total{state="whole"}'] >= 3
    server.process.send_signal(signal.SIGINT)
    server.end()


def test_a_run_of_two_nodes_is_scraped_while_it_goes_on(start: Callable[..., Program]) -> None:
    base = ("--model", "payload:64KiB", "--clients", "2", "--rounds", "10000")
    tree = ("--aggregation", "tree", "--nodes", "2", "--placement", "worst-fit")
    run = start("run", *base, *tree, "--metrics", "0")
    url = run.until("metrics: http://127.0.0.1:").split()[-1]
    run.until("round 3/")
    scrape = scraped(url)
    assert scrape["thalweg_rounds_total"] >= 3
    assert scrape['thalweg_updates_total{state="whole"}'] >= 6
    assert scrape['thalweg_bytes_total{direction="between"}'] > 0
    assert scrape["thalweg_clients"] == 2
    for node in ("node-0", "node-1"):
        assert scrape[f'thalweg_folds_total{{node="{node}"}}'] >= 2
        assert scrape[f'thalweg_handover_seconds_count{{node="{node}"}}'] >= 1
        assert scrape[f'thalweg_pool_places{{node="{node}"}}'] >= 2
        assert scrape[f'thalweg_worker_deaths_total{{node="{node}"}}'] == 0
    run.process.send_signal(signal.SIGINT)
    code, _, _ = run.end()
    assert code == 130


def test_held_connections_to_the_metrics_port_do_not_disturb_the_job(start: Callable[..., Program]) -> None:
    few = ("sh", "-c", 'ulimit -n 256; exec "$0" "$@"')
    run = start("run", "--model", "payload:64KiB", "--clients", "2", "--rounds", "10000", "--metrics", "0", through=few)
    url = run.until("metrics: http://127.0.0.1:").split()[-1]
    port = int(url.split(":")[2].partition("/")[0])
    run.until("round 2/")
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        done = scraped(url)["thalweg_rounds_total"]
        run.until(f"round {int(done) + 20}/")
        assert len(list(Path(f"/proc/{run.process.pid}/fd").iterdir())) < 128
        with urlopen(url.replace("/metrics", "/health"), timeout=60) as answer:  # noqa: S310 - as above
            assert answer.read() == b"ok\n"
    run.process.send_signal(signal.SIGINT)
    code, _, err = run.end()
    assert code == 130, err
