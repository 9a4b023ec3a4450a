"""A round with a goal ends after exactly that many updates, whichever clients are lost."""

from __future__ import annotations

import random

import pytest

from thalweg.job.tree.admission import Admission


def there(rng: random.Random, nodes: int, clients: int) -> dict[str, set[str]]:
    clients_by_node: dict[str, set[str]] = {f"node-{place}": set() for place in range(nodes)}
    for client in range(clients):
        clients_by_node[f"node-{rng.randrange(nodes)}"].add(f"client-{client}")
    return clients_by_node


@pytest.mark.parametrize("seed", range(200))
def test_never_more_than_the_goal_and_exactly_it_if_enough_can_deliver(seed: int) -> None:
    """In each batch, clients and whole nodes are lost; the clients of a lost node may move to other nodes."""
    rng = random.Random(seed)
    nodes, clients = rng.randint(1, 5), rng.randint(1, 40)
    goal = rng.randint(1, clients)
    at, asked, counted = there(rng, nodes, clients), set[str](), set[str]()
    drawing = Admission(goal, seed, 1)
    while drawn := drawing.draw(at):
        batch = {client for own in drawn.values() for client in own}
        assert not batch & asked, "nobody is asked twice"
        asked |= batch
        assert len(counted) + len(batch) <= goal
        for node, own in drawn.items():
            assert set(own) <= at[node]
            if len(at) > 1 and rng.random() < 0.2:
                moved, left = at.pop(node), rng.choice(sorted(at))
                at[left] |= moved if rng.random() < 0.5 else set()
                continue
            came = {client for client in own if rng.random() < 0.7}
            counted |= came
            drawing.counted(len(came))
    assert len(counted) <= goal
    rest = set().union(*at.values()) - asked
    assert len(counted) == goal or not rest, "it ends short only when nobody is left to ask"
    assert drawing.missing == goal - len(counted)


def test_the_seed_and_the_round_draw_and_not_where_clients_are() -> None:
    def drawn(seed: int, number: int, at: dict[str, set[str]]) -> set[str]:
        return {client for own in Admission(5, seed, number).draw(at).values() for client in own}

    one, other = (there(random.Random(seed), 4, 20) for seed in (1, 2))
    assert drawn(7, 1, one) == drawn(7, 1, other)
    assert drawn(7, 1, one) != drawn(7, 2, one)
    assert drawn(7, 1, one) != drawn(8, 1, one)


def test_all_are_drawn_about_equally_often() -> None:
    at = {"node-0": {f"client-{place}" for place in range(8)}, "node-1": {"client-8", "client-9"}}
    times = dict.fromkeys((client for own in at.values() for client in own), 0)
    for number in range(1, 501):
        for own in Admission(3, 1, number).draw(at).values():
            for client in own:
                times[client] += 1
    # The expected number is 150, with a standard deviation of 10.
    assert all(100 < drawn < 200 for drawn in times.values()), times
