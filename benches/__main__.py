"""``make bench``: measures, prints a table, and keeps the results as JSON under benches/results.

``python -m benches systems`` has options of its own: it measures many systems side by side (benches/systems).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable

from benches import flower, masked, shared, transports
from benches.beside import beside
from benches.common import FOLDER, MIB, Figure
from benches.crowd import crowds, many_clients
from benches.deciding import deciding
from benches.folding import fold
from benches.forwarding import forwarding
from benches.goals import goals
from benches.gpu import gpu
from benches.graph import graph, soaks
from benches.lab import lab
from benches.masking import masking
from benches.memory import server_memory
from benches.node_systems import node_systems
from benches.paths import paths
from benches.planning import planning
from benches.rdma import rdma
from benches.rounds import one_update, rounds
from benches.sealing import sealing
from benches.starting import starting
from benches.systems import __main__ as systems
from benches.tasks import tasks
from benches.tops import tops
from benches.trees import trees
from thalweg import _core, machine, wire


def control() -> list[Figure]:
    """Measure the round trip of an empty control message."""
    probe = json.loads(_core.probe_loopback(64 * MIB))
    trip = probe["control_round_trip_seconds"]
    return [
        Figure("empty control message, there and back, loopback", f"{trip * 1e6:.0f} us", "500 us", trip < 5e-4, probe)
    ]


SECTIONS: dict[str, Callable[[], list[Figure]]] = {
    "small": lambda: [rounds(8 * MIB, 4, 15, 0.100)],
    "large": lambda: [rounds(232 * MIB, 4, 7, 1.7)],
    "shared": lambda: [shared.rounds(232 * MIB, 4, 7, 2.5), shared.rounds(8 * MIB, 4, 15, 2.0)],
    "update": lambda: one_update(1024 * MIB, 7),
    "memory": lambda: server_memory(232 * MIB),
    "fold": fold,
    "crowd": lambda: [many_clients()],
    "crowds": crowds,
    "tasks": tasks,
    "flower": flower.small,
    "flower-large": flower.large,
    "flower-accuracy": flower.accuracy,
    "gpu": gpu,
    "graph": graph,
    "soak": soaks,
    "control": control,
    "deciding": deciding,
    "planning": planning,
    "lab": lab,
    "masking": masking,
    "goals": goals,
    "receiver": masked.receiver,
    "beside": beside,
    "thousand": masked.thousand,
    "sealing": sealing,
    "transports": transports.loopback,
    "bounds": transports.bounds,
    "footprint": transports.memory,
    "peers": transports.peers,
    "forward": forwarding,
    "paths": paths,
    "rdma": rdma,
    "trees": lambda: [*starting(), *trees(), *node_systems()],
    "starts": starting,
    "tops": tops,
}
# Sections that take minutes, need a GPU or are part of another section. They run only if they are named.
LONG = ("gpu", "soak", "rdma", "starts")


def main() -> None:
    if sys.argv[1:2] == ["systems"]:
        sys.exit(systems.main(sys.argv[2:]))
    usual = [section for section in SECTIONS if section not in LONG]
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("sections", nargs="*", default=usual, help=f"some of {', '.join(SECTIONS)}")
    chosen = parser.parse_args().sections
    figures: list[Figure] = []
    load_before = os.getloadavg()
    for section in chosen:
        measured = SECTIONS[section]()
        figures += measured
        for figure in measured:
            mark = {True: "reached", False: "MISSED ", None: "       "}[figure.reached]
            print(f"{mark}  {figure.name}\n         {figure.value}   [{figure.limit}]", flush=True)
    folder = FOLDER / "benches" / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    state = {"machine": machine.facts(), "load_before": load_before, "load_after": os.getloadavg()}
    results = {"machine": state, "figures": [figure.facts() for figure in figures]}
    path.write_text(json.dumps(results, indent=1, default=wire.table_of))
    print(f"results: {path.relative_to(FOLDER)}; load {load_before[0]:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
