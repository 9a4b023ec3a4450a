"""The metrics for Prometheus: a job's progress, and the state of each node's workers."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.outcomes import outcome_of
from thalweg.errors import LinkError, PlanError
from thalweg.job.common.metrics import RoundCounts, exposing
from thalweg.plan import Plan
from thalweg.transports import pki
from thalweg.trees.counters import Created, Decisions, Now, Percentiles, Reused, Started, Workers

pytest.importorskip("prometheus_client", reason="prometheus-client is not installed: uv pip install prometheus-client")


def told(died: int = 2) -> Workers:
    nothing = Percentiles(None, None)
    return Workers(
        workers=2, leaves=1, aggregators_created=2, created=Created(2, 0), reused=Reused(3), retired=1,
        decisions=Decisions(4, ()), died=died, warm=2, commits=2, started=Started(2, 0), start_us=nothing,
        resume_us=nothing, handover_us=nothing, fold_us=nothing, cpu_seconds=1.5, hops_cpu_seconds=0.0,
        pool_bytes=4096, sums_bytes=128, routes="node", routes_reason="", notes=None,
        now=Now(7, 0, 8, 3, (10.0, 25.0), (1, 2, 4), 300.0),
    )  # fmt: skip


def entry(number: int, **more: Any) -> Any:
    clients = [{"client": "a", "state": "whole"}, {"client": "b", "state": "lost"}]
    fold = {"completion_seconds": 0.02, "between_bytes": 11}
    ways = {"bytes_down": 100, "bytes_up": 50}
    whole = {"round": number, "seconds": 0.3, **ways, "clients": clients, "participants": 1, "fold": fold}
    return {**whole, "accuracy": None, "loss": None, **more}


class Scraped:
    """Scrape the metrics: values by name, with labels as Prometheus writes them."""

    def __init__(self, url: str) -> None:
        with urlopen(url, timeout=60) as answer:  # noqa: S310 - the address is this process's own
            text = answer.read().decode()
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        self.values = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def __getitem__(self, name: str) -> float:
        return self.values[f"thalweg_{name}"]


def test_rounds_updates_and_bytes_are_counted() -> None:
    notes: list[str] = []
    with exposing("0", notes.append, clients=lambda: ["a", "b"]) as count:
        url = notes[0].partition(" ")[2]
        assert url.startswith("http://127.0.0.1:")
        before = Scraped(url)
        assert (before["rounds_total"], before["clients"]) == (0, 2)
        assert not any("accuracy" in name or "node=" in name for name in before.values)
        count(RoundCounts.of_entry(entry(1, accuracy=0.5)))
        count(RoundCounts.of_entry(entry(2, accuracy=0.75, loss=1.5)))
        scrape = Scraped(url)
    assert (scrape["rounds_total"], scrape['updates_total{state="whole"}'], scrape['updates_total{state="lost"}']) == (
        2,
        2,
        2,
    )
    assert [scrape[f'bytes_total{{direction="{way}"}}'] for way in ("down", "up", "between")] == [200, 100, 22]
    assert (scrape["round_seconds_count"], scrape['completion_seconds_bucket{le="0.025"}']) == (2, 2)
    assert (scrape["accuracy"], scrape["loss"]) == (0.75, 1.5)
    with pytest.raises(OSError, match="refused"):
        Scraped(url)


def test_an_outcome_of_the_core_counts_as_an_entry_of_the_journal_does() -> None:
    notes: list[str] = []
    outcome = outcome_of(participants=[{"client": "a", "state": "whole"}, {"client": "b", "state": "lost"}])
    with exposing("127.0.0.1:0", notes.append, clients=list) as count:
        count(RoundCounts.of_outcome(outcome))
        assert Scraped(notes[0].partition(" ")[2])['updates_total{state="lost"}'] == 1


def test_workers_are_told_apart_by_node() -> None:
    notes: list[str] = []
    nodes = {"node-0": told(), "node-1": told(died=5)}
    with exposing("0", notes.append, clients=list, nodes=lambda: nodes):
        scrape = Scraped(notes[0].partition(" ")[2])
    assert [scrape[f'worker_deaths_total{{node="node-{at}"}}'] for at in (0, 1)] == [2, 5]
    names = ("workers", "workers_started_total", "folds_total", "pool_places", "pool_free_places")
    assert [scrape[f'{name}{{node="node-0"}}'] for name in names] == [2, 2, 7, 8, 3]
    buckets = [
        scrape[f'handover_seconds_bucket{{le="{bound}",node="node-0"}}'] for bound in ("1e-05", "2.5e-05", "+Inf")
    ]
    assert (buckets, scrape['handover_seconds_count{node="node-0"}']) == ([1, 3, 7], 7)
    assert scrape['handover_seconds_sum{node="node-0"}'] == pytest.approx(300e-6)


def test_a_port_that_is_taken_is_refused_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(LinkError, match="cannot serve metrics at 127") as caught,
            exposing(str(port), print, clients=list),
        ):
            pass
    assert "--metrics" in caught.value.hint


def test_nobody_listens_without_being_asked() -> None:
    def noted(_text: str) -> None:
        raise AssertionError

    with exposing(None, noted, clients=list) as count:
        count(RoundCounts.of_entry(entry(1)))


@pytest.mark.parametrize("where", ["70000", "-1", "host:", "nine", "host:1:", ""])
def test_what_is_no_port_is_refused(where: str) -> None:
    with pytest.raises(PlanError, match="metrics"):
        Plan.of({"record": {"metrics": where}})


@pytest.mark.parametrize(("where", "kept"), [(9100, "9100"), ("0.0.0.0:9100", "0.0.0.0:9100"), ("[::1]:0", "[::1]:0")])
def test_a_port_may_be_a_number_and_have_a_host(where: Any, kept: str) -> None:
    assert Plan.of({"record": {"metrics": where}}).record.metrics == kept


def test_the_expiry_of_the_servers_certificates_is_shown(tmp_path: Path) -> None:
    pki.init(tmp_path / "pki", ["127.0.0.1"], 30)
    notes: list[str] = []
    with exposing("0", notes.append, clients=list, pki=str(tmp_path / "pki")):
        scrape = Scraped(notes[0].partition(" ")[2])
    for name in ("ca", "server"):
        expiry = pki.Certificate.read(tmp_path / "pki" / f"{name}.crt").not_after
        assert scrape[f'certificate_expiry_timestamp_seconds{{name="{name}"}}'] == expiry
