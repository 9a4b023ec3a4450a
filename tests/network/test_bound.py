"""The bound of a round's time, compared with results computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg.network import bound, inline, spec
from thalweg.network.bound import Stage
from thalweg.network.routes import routes
from thalweg.network.spec import Spec
from thalweg.sections.network import NetworkSection

MB = 1_000_000


def build(text: str, clients: int = 2, *, links: dict[str, Any] | None = None, **more: Any) -> Spec:
    network = NetworkSection.model_validate({**inline.over(more, text), "clients": links})
    return spec.build([f"client-{number}" for number in range(1, clients + 1)], network)


def sent(count: float, rate: float, header: int = 52) -> float:
    return count * 8 / rate * 1500 / (1500 - header)


def test_a_star_is_each_links_bytes_down_and_then_up() -> None:
    assert bound.seconds(build("wifi"), MB, 2) == pytest.approx(2 * sent(MB, 60e6))
    made = build("rate=10mbit,up.rate=5mbit")
    assert bound.seconds(made, MB, 2) == pytest.approx(sent(MB, 10e6) + sent(MB, 5e6))


def test_vgg5_on_the_papers_links() -> None:
    # FedComm's uplink: 2.34 MB take 3.74, 0.94 and 0.31 s at 5, 20 and 60 Mbit/s, without headers.
    for name, seconds in {"3g": 3.74, "4g": 0.94, "wifi": 0.31}.items():
        without_headers = bound.seconds(build(name), 2_340_000, 4) / 2 * (1500 - 52) / 1500
        assert without_headers == pytest.approx(seconds, abs=0.005)


@pytest.mark.parametrize(
    ("path", "rate"),
    [
        ([Stage(None, 0.5)], None),
        ([Stage(50e6)], 50e6),
        ([Stage(50e6, 0.2)], 50e6),
        ([Stage(50e6, 0.2, loses_first=False)], 40e6),
        # The second link loses a part of the packets that the first passes, and needs time only for the rest.
        ([Stage(50e6, 0.2), Stage(100e6, 0.1)], 45e6),
        ([Stage(50e6, 0.2), Stage(40e6, 0.1)], 40e6),
        ([Stage(50e6, 0.2), Stage(None, 0.1), Stage(None, 0.1)], 40.5e6),
        ([Stage(50e6), Stage(60e6, 1.0)], 0.0),
    ],
)
def test_a_loss_in_front_of_a_limit_takes_none_of_the_rate(path: list[Stage], rate: float | None) -> None:
    data = None if rate is None else pytest.approx(rate * 1448 / 1500)
    assert bound.carried(path) == data
    assert bound.carried(path, 1.0) == (None if rate is None else pytest.approx(rate))


def test_timestamps_are_part_of_the_headers() -> None:
    made = build("wifi", tcp={"timestamps": False})
    assert bound.seconds(made, MB, 2) == pytest.approx(2 * sent(MB, 60e6, 40))
    assert bound.seconds(build("wifi"), MB, 2, fragments=True) == pytest.approx(2 * sent(MB, 60e6, 20))


def test_a_paths_delay_is_added_and_jitter_may_help() -> None:
    assert bound.seconds(build("wan"), MB, 2) == pytest.approx(2 * sent(MB, 1e9) + 0.04)
    assert bound.seconds(build("dpsgd"), MB, 2) == pytest.approx(2 * 0.15)
    assert bound.seconds(build("delay=10ms,reorder=1%"), MB, 2) == 0


def test_the_slowest_client_counts() -> None:
    made = build("wifi", 3, links={"client-2": {"profile": "3g"}})
    assert bound.seconds(made, MB, 3) == pytest.approx(2 * sent(MB, 5e6))
    assert bound.seconds(made, MB, 2) == pytest.approx(2 * sent(MB, 60e6)), "of fewer clients the quickest"


def test_through_a_broker_the_model_goes_up_once_and_updates_go_twice() -> None:
    made = build("rate=60mbit,rtt=10ms", 3, broker={"rate": "90mbit", "rtt": "20ms"})
    # Down: all three models leave the broker over its link. Up: all three updates arrive there, and the last one
    # continues to the server.
    assert bound.seconds(made, MB, 3, broker=True) == pytest.approx(sent(3 * MB, 90e6) + sent(MB, 60e6) + 2 * 0.025)
    assert bound.seconds(made, MB, 1, broker=True) == pytest.approx(2 * (sent(MB, 60e6) + 0.025))
    # Jobs that need no broker do not cross the broker's link.
    assert bound.seconds(made, MB, 3) == pytest.approx(2 * (sent(MB, 60e6) + 0.005))
    links = [{"a": end, "b": "hub"} for end in ("client-1", "client-2", "broker")]
    links.append({"a": "server", "b": "hub", "rate": "10mbit"})
    asked = {"topology": "graph", "rate": "100mbit", "broker": {}, "links": links, "switches": ["hub"]}
    network = NetworkSection.model_validate(asked)
    made = spec.build(["client-1", "client-2"], network)
    # The server's link decides, because the broker's link is fast: one model down, two updates up.
    assert bound.seconds(made, MB, 2, broker=True) == pytest.approx(sent(MB, 10e6) + sent(2 * MB, 10e6))


def test_a_shared_link_carries_all() -> None:
    made = build("rate=60mbit,rtt=10ms", 3, topology="bottleneck", bottleneck={"rate": "90mbit", "rtt": "20ms"})
    assert bound.seconds(made, MB, 3) == pytest.approx(sent(3 * MB, 90e6) + sent(MB, 60e6) + 0.03)
    wide = build("rate=60mbit", 3, topology="dumbbell", bottleneck={"rate": "1gbit"})
    assert bound.seconds(wide, MB, 3) == pytest.approx(2 * sent(MB, 60e6))


def test_the_best_that_a_link_ever_is_counts() -> None:
    changes = [{"at": 5, "rate": "20mbit", "delay": "1ms"}, {"at": 9, "rate": "1mbit"}]
    made = build("rate=10mbit,rtt=10ms", changes=changes)
    assert bound.seconds(made, MB, 2) == pytest.approx(2 * sent(MB, 20e6) + 0.002)
    free = build("rate=10mbit", changes=[{"at": 5, "rate": "unlimited"}])
    assert bound.seconds(free, MB, 2) == 0


def test_the_bound_grows_with_bytes_and_clients_and_falls_with_rate() -> None:
    made = build("wan", 4, topology="bottleneck")
    by_clients = [bound.seconds(made, MB, clients) for clients in (1, 2, 3, 4)]
    assert by_clients == sorted(by_clients)
    assert bound.seconds(made, 2 * MB, 4) > bound.seconds(made, MB, 4)


def test_paths_are_the_fewest_links_and_the_first_named() -> None:
    links = [
        {"a": "client-1", "b": "x"},
        {"a": "client-1", "b": "y"},
        {"a": "y", "b": "server"},
        {"a": "x", "b": "server"},
        {"a": "client-2", "b": "client-1"},
    ]
    network = NetworkSection.model_validate({"topology": "graph", "switches": ["x", "y"], "links": links})
    paths = routes(spec.build(["client-1", "client-2"], network))
    names = {pair: [f"{link.name} {way}" for link, way in path] for pair, path in paths.items()}
    # Like the relay, which searches from the target and takes the earlier of the links that lead to it.
    assert names["client-1", "server"] == ["client-1_y ab", "y_server ab"]
    assert names["server", "client-1"] == ["x_server ba", "client-1_x ba"]
    assert names["server", "client-2"] == ["x_server ba", "client-1_x ba", "client-2_client-1 ba"]
