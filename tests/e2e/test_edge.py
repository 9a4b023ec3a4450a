"""What the edge experiments do to a host of a lab while a system runs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from experiments.edge.bench import Bench, lab_of
from experiments.edge.outage import LINK, move
from tests.e2e.conftest import why_no_lab
from thalweg.lab.namespaces import within

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")]

TIMEOUT = 30.0


def test_a_client_that_moved_reaches_the_server_from_its_other_address(tmp_path: Path) -> None:
    with lab_of("rate=20mbit,rtt=2ms", 1) as lab:
        client, server = lab.host(LINK), lab.host("server")
        with within(server.namespace, lambda: socket.create_server((server.ipv4, 0))) as listener:
            listener.settimeout(TIMEOUT)

            def seen() -> str:
                place = listener.getsockname()
                with within(client.namespace, lambda: socket.create_connection(place, TIMEOUT)):
                    accepted, (address, _) = listener.accept()
                    accepted.close()
                return str(address)

            assert seen() == client.ipv4 == "10.77.0.2"
            move(Bench(lab, tmp_path))
            assert seen() == "10.76.0.2"
