"""Profiles: shipped ones have the papers' values, a user's own are found, and errors are explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thalweg.errors import PlanError
from thalweg.network import profiles
from thalweg.network.shape import Burst, Keys, Range
from thalweg.network.topology import pair_of_profile
from thalweg.ui.units import PROFILES

MBIT = 1_000_000
SHIPPED: dict[str, dict[str, Any]] = {
    "3g": {"rate": 5 * MBIT},
    "4g": {"rate": 20 * MBIT},
    "wifi": {"rate": 60 * MBIT},
    "wan": {"rate": 1000 * MBIT, "rtt": 0.04},
    "unifl-wan": {"rate": Range(600 * MBIT, 800 * MBIT, ""), "delay": Range(0.02, 0.06, "")},
    "dpsgd": {"delay": 0.2, "jitter": 0.05, "loss_correlation": 0.25},
    "cross-silo": {"rate": 10_000 * MBIT, "rtt": 0.02},
    "lan": {"rate": 1000 * MBIT, "rtt": 0.0005},
    "continent": {"rate": 1000 * MBIT, "rtt": 0.072, "loss": 0.0001},
}
SLOWLY = {"delay_correlation": 0.99, "keep_order": True}
# Rates up and down, for profiles in which they differ.
UNEQUAL: dict[str, tuple[int, int, dict[str, Any]]] = {
    "home": (20 * MBIT, 100 * MBIT, {"rtt": 0.015, "jitter": 0.001, "loss": 0.0005, **SLOWLY}),
    "5g": (20 * MBIT, 207 * MBIT, {"rtt": 0.044, "jitter": 0.008, "loss": 0.001, **SLOWLY}),
    "satellite": (13_500_000, 87 * MBIT, {"rtt": 0.05, "jitter": 0.01, "burst": Burst(0.001, 0.125), **SLOWLY}),
}


def test_all_that_ship_are_known_here() -> None:
    assert profiles.names() == sorted(SHIPPED | UNEQUAL)
    assert all(profiles.is_shipped(name) for name in profiles.names())


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_is_what_its_source_says(name: str) -> None:
    profile = profiles.load(name)
    place = f"the profile {name!r}"
    assert pair_of_profile(name).up == Keys(SHIPPED[name], place)
    assert pair_of_profile(name).down == Keys(SHIPPED[name], place)
    assert all((profile.title, profile.description, profile.source))


@pytest.mark.parametrize("name", UNEQUAL)
def test_todays_paths_have_delays_and_another_rate_each_way(name: str) -> None:
    up, down, both = UNEQUAL[name]
    pair, profile = pair_of_profile(name), profiles.load(name)
    assert (pair.up.values, pair.down.values) == ({**both, "rate": up}, {**both, "rate": down})
    assert pair.up.shape(0, "client-1").lost == pytest.approx(both.get("loss", 1 / 126))
    assert all((profile.title, profile.description, profile.source))


def test_a_throttle_of_a_profile_is_its_rate() -> None:
    assert {name: profiles.load(name).link.rate for name in PROFILES} == PROFILES


def test_a_wrong_name_gets_the_near_one() -> None:
    with pytest.raises(PlanError, match=r"unknown profile 'wify'. Did you mean 'wifi'\? Known: 3g, 4g"):
        profiles.load("wify")


def test_a_file_is_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "ship.toml"
    path.write_text('[link]\nrate = "2mbit"\n[link.up]\nrate = "1mbit"\n')
    profile = profiles.load(str(path))
    assert (profile.title, profile.source) == ("ship", ())
    pair = pair_of_profile(str(path))
    assert (pair.up.values["rate"], pair.down.values["rate"]) == (MBIT, 2 * MBIT)
    assert not profiles.is_shipped(str(path))


def test_a_folder_of_ones_own_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ship.toml").write_text('title = "At sea"\n[link]\nrtt = "600ms"\n')
    monkeypatch.setenv(profiles.OWN, str(tmp_path))
    assert "ship" in profiles.names()
    assert profiles.load("ship").title == "At sea"
    assert profiles.load("wan").title == "Wide area"
    with pytest.raises(PlanError, match="Did you mean 'ship'"):
        profiles.load("shipp")


def test_a_name_means_one_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wan.toml").write_text("[link]\n")
    monkeypatch.setenv(profiles.OWN, str(tmp_path))
    with pytest.raises(PlanError, match="has the name of a profile that ships"):
        profiles.names()


def test_a_folder_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(profiles.OWN, str(tmp_path / "gone"))
    with pytest.raises(PlanError, match="which is no folder"):
        profiles.load("wan")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rate = 1", "2 keys are wrong: unknown key 'rate' (move it to [link]); link is missing"),
        ("title = 'x'", "link is missing"),
        ("[link]\nrat = 1", "unknown key 'rat' in [link]. Did you mean 'rate'?"),
        ("[link]\nloss = 2", "loss in [link] is 2, not from 0 to 1"),
        ("[link.up]\nrtt = 1", "unknown key 'rtt' in [link.up]"),
        ("[link]\nprofile = 'wan'", "names another profile"),
        ("[link", "is not TOML"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(PlanError) as caught:
        profiles.load(str(path))
    assert words in str(caught.value)
    assert str(path) in caught.value.cause


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="No such file"):
        profiles.load(str(tmp_path / "none.toml"))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match="UTF-8"):
        profiles.load(str(binary))
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (profiles.LARGEST_FILE + 1))
    with pytest.raises(PlanError, match="more than 65536 bytes"):
        profiles.load(str(large))
