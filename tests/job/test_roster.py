from __future__ import annotations

from thalweg.apps import place_of
from thalweg.job.star.roster import Roster


def test_places_are_given_in_order_and_kept() -> None:
    roster = Roster(3)
    assert roster.update(["b", "a"]) == ["b", "a"]
    assert roster.update(["a", "b", "c"]) == ["b", "a", "c"]


def test_a_new_client_takes_the_place_of_one_that_has_gone() -> None:
    roster = Roster(2, ["a", "b"])
    assert roster.update(["b", "c"]) == ["c", "b"]
    assert roster.update(["b", "c"]) == ["c", "b"]


def test_hosts_that_are_listed_have_their_places_before_they_come() -> None:
    assert Roster(2, ["anna", "berta"]).update(["berta"]) == ["anna", "berta"]


def test_a_client_finds_its_part_of_the_data() -> None:
    assert [place_of(name, ["a", "b", "c"], 3) for name in "abc"] == [0, 1, 2]
    assert 0 <= place_of("late", ["a", "b", "c"], 3) < 3
    assert place_of("late", ["a"], 3) == place_of("late", ["a", "b"], 3)
