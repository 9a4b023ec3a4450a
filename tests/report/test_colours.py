"""A transport has the same colour in every plot and on every page."""

from __future__ import annotations

from pathlib import Path

from tests.report.records import make
from tests.report.test_page import charts, read
from thalweg.report import report
from thalweg.report.colours import COLOURS, of_transports
from thalweg.transports import registry


def test_each_transport_of_the_registry_has_a_colour_of_its_own() -> None:
    names = [entry.name for entry in registry.transports()]
    assert len(names) <= len(COLOURS)
    assert len(set(of_transports(names).values())) == len(names)


def test_a_colour_does_not_depend_on_who_else_is_there() -> None:
    names = [entry.name for entry in registry.transports()]
    together = of_transports(names)
    assert all(of_transports([name]) == {name: together[name]} for name in names)
    assert of_transports(reversed(names)) == together


def test_ways_of_one_transport_differ_and_keep_its_colour_for_the_first() -> None:
    colours = of_transports(["tcp reno", "tcp bbr", "tcp cubic", "udp"])
    assert len(set(colours.values())) == 4
    assert colours["tcp bbr"] == of_transports(["tcp"])["tcp"]
    assert colours["udp"] == of_transports(["udp"])["udp"]


def test_a_transport_of_another_build_has_a_colour() -> None:
    assert of_transports(["carrier-pigeon"])["carrier-pigeon"] in COLOURS


def test_all_plots_of_a_page_agree(tmp_path: Path) -> None:
    records = [
        make(tmp_path / name, plan={"transport": {"url": f"{scheme}://127.0.0.1:0"}})
        for name, scheme in (("a", "udp"), ("b", "tcp"), ("c", "udp"))
    ]
    report(records, tmp_path / "r.html")
    drawn = charts(read(tmp_path / "r.html"))
    expected = of_transports(["tcp", "udp"])
    for name, key in (("communication-time", "marker"), ("accuracy-rounds", "line"), ("communication-rounds", "line")):
        colours = {one["name"]: one[key]["color"] for one in drawn[name]["traces"] if one.get("name") in expected}
        assert colours == expected, name
