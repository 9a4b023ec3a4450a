"""The output for people: lines of progress, bars, the table, the bound."""

from __future__ import annotations

import io
import json
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from tests.record.conftest import round_entry
from thalweg.cli.summary import SHOWN, network_line, summary
from thalweg.job.star.host import Result
from thalweg.plan import Plan
from thalweg.plan.bound import Bound, bound_of
from thalweg.trees.live import WorkReport
from thalweg.ui.phrases import number_of
from thalweg.ui.progress import Bars, LineProgress, missing_words, round_line


def rendered(bound: Bound) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(summary([round_entry(1)], bound))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_a_round_in_one_line() -> None:
    assert round_line(round_entry(2), 5) == (
        "round 2/5: accuracy 52.00 %, 3.00 s (communication 500.0 ms), 800 B down, 500 B up, 1 of 2 clients, incomplete"
    )


def test_a_round_of_an_unknown_number_of_rounds_has_no_total() -> None:
    assert round_line(round_entry(2), None).startswith("round 2: accuracy")


def test_an_update_with_holes_is_told_as_such() -> None:
    entry = round_entry(1)
    up = [transfer for transfer in entry["transfers"] if transfer["direction"] == "up"]
    came = sum(transfer["bytes"] for transfer in up)
    whole: Any = {**entry, "participants": 2, "expected": 2, "complete": True}
    assert missing_words(whole) == []
    holed = [{**transfer, "missing": came // 4 if transfer is up[0] else 0} for transfer in entry["transfers"]]
    holed = [{**transfer, "missing": transfer["bytes"]} if transfer["direction"] == "down" else transfer
             for transfer in holed]  # fmt: skip
    told: Any = {**whole, "transfers": holed}
    assert missing_words(told) == ["20 % missing", "50 % of the model missing"]
    assert round_line(told, 5).endswith("2 of 2 clients, 20 % missing, 50 % of the model missing")
    console = Console(file=io.StringIO(), width=180)
    console.print(summary([told, whole], Bound("not known")))
    heading, _, first, second = console.file.getvalue().splitlines()[1:5]  # type: ignore[attr-defined]
    assert re.search("missing down +missing up *$", heading)
    assert re.search("2/2 .* 50 % +20 % *$", first)
    assert re.search("2/2 .* - +- *$", second)


def test_the_table_holds_goodput_against_the_bound() -> None:
    # A round moves 800 bytes down and 400 up in half a second. At 4800 bytes a second it takes at least a quarter.
    text = rendered(Bound("raw TCP", total_bytes_per_second=4800.0))
    assert "51.00 %" in text
    assert "19.2 kbit/s       50 %" in text
    assert "bound: raw TCP" in text


def test_the_bound_of_a_network_is_of_whole_rounds() -> None:
    # The round's transfers have 1200 bytes.
    assert "50 %" in rendered(Bound("links", round_seconds=0.25, round_bytes=1200))
    assert "19.2 kbit/s          -" in rendered(Bound("links", round_seconds=0.25, round_bytes=1600))


def test_the_table_says_how_links_were_emulated() -> None:
    def line(emulation: str, reason: str | None, **sections: object) -> str | None:
        plan = Plan.of(sections)
        return network_line(cast("Result", SimpleNamespace(plan=plan, emulation=emulation, emulation_reason=reason)))

    assert line("none", None) is None
    assert line("packet level", None, network={"profile": "lan"}) == "emulated at packet level"
    said = line('message level: {"emulate": {}}', "no root", network={"profile": "lan"})
    assert said == "emulated at message level, because no root"
    console = Console(file=io.StringIO(), width=140)
    console.print(summary([round_entry(1)], Bound("links"), said))
    assert "network: emulated at message level" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_table_of_rounds_that_lost_something_fits_110_columns() -> None:
    holed = [{**transfer, "missing": transfer["bytes"]} for transfer in round_entry(1)["transfers"]]
    console = Console(file=io.StringIO(), width=110)
    console.print(summary([cast("Any", {**round_entry(1), "transfers": holed})], Bound("not known")))
    (row,) = (line for line in console.file.getvalue().splitlines() if line.strip().startswith("1 "))  # type: ignore[attr-defined]
    assert len(re.findall("50 %", row)) == 2


def test_only_the_last_rounds_are_in_the_table() -> None:
    console = Console(file=io.StringIO(), width=140)
    console.print(summary(map(round_entry, range(1, SHOWN + 51)), Bound("none")))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) < SHOWN + 10
    assert any("the 50 rounds before these are in the record" in line for line in lines)


def test_a_throttle_and_a_handover_have_units_that_people_read() -> None:
    plan = Plan.of({"layers": {"throttle": "200mbit"}, "transport": {"url": "tcp"}})
    assert bound_of(plan, plan.url, 1000).source == "each link is throttled to 200 Mbit/s in each direction"
    counters = SimpleNamespace(
        workers=1, died=0, nodes_used=1, routes="kernel", handover_us=SimpleNamespace(p50=1248.0)
    )
    work = WorkReport("lifl", {}, cast("Any", counters), cast("Any", {}))
    assert work.sentence() == "tree: 1 worker on one node, an update handed over in 1.2 ms inside the kernel"


def test_one_of_something_has_no_plural() -> None:
    assert [number_of(number, "client") for number in (0, 1, 2)] == ["0 clients", "1 client", "2 clients"]


def test_without_a_bound_there_is_no_share() -> None:
    assert "19.2 kbit/s          -" in rendered(Bound("not known"))


def test_a_throttled_link_takes_bytes_by_rate_down_and_then_up() -> None:
    bound = Bound("throttle", link_bits_per_second=5_000_000)
    # FedComm's VGG-5 at 3G: 2.34 MB take 3.74 s in each direction, on four links at a time.
    assert bound.seconds(4 * 2_340_000, 4 * 2_340_000, 4) == pytest.approx(2 * 3.744)


def test_lines_are_written_as_rounds_end(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LineProgress()
    lines.begin(1, 3)
    lines.observe('{"clients": {}}')
    lines.end(round_entry(1))
    lines.close()
    assert capsys.readouterr().err.startswith("round 1/3: accuracy 51.00 %")


def test_bars_show_what_clients_do() -> None:
    console = Console(file=io.StringIO(), width=140, force_terminal=True)
    bars = Bars(console)
    bars.begin(1, 3)
    clients = {f"c{number}": {"phase": "sending", "sent_fraction": 0.5} for number in range(20)}
    bars.observe(json.dumps({"clients": {**clients, "done": {"phase": "whole", "sent_fraction": 1.0}}}))
    bars.refresh()
    bars.end(round_entry(1))
    bars.close()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "c0" in text
    assert "c9" not in text, "only the first clients have a bar of their own"
    assert "20 sending, 1 whole" in text
    assert "round 1/3: accuracy 51.00 %" in text


def test_a_loss_stands_where_there_is_no_accuracy() -> None:
    entry: Any = {**round_entry(1), "accuracy": None, "loss": 0.123456}
    console = Console(file=io.StringIO(), width=140)
    console.print(summary([entry], Bound("links")))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "accuracy" not in text
    assert "loss" in text
    assert "0.1235" in text
    assert round_line(entry, 5).startswith("round 1/5: loss 0.1235, ")
    assert "accuracy" in rendered(Bound("links"))
