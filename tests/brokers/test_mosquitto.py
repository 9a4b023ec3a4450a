"""Mosquitto as a private broker: its configuration, and which clients it accepts."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from thalweg.brokers import Broker, BrokerPlace, Login, Site, Tls
from thalweg.brokers.base import installed
from thalweg.brokers.mosquitto import Mosquitto, configuration, password_line

needs_mosquitto = pytest.mark.skipif(installed("mosquitto") is None, reason="mosquitto is not installed: make system")
REFUSED, ACCEPTED = 5, 0


def connect(port: int, login: Login | None) -> int:
    """Return the code of the CONNACK (MQTT 3.1.1, section 3.2.2.3)."""
    body = b"\x00\x04MQTT\x04" + (b"\x02" if login is None else b"\xc2") + b"\x00\x3c" + text("thalweg-test")
    if login is not None:
        body += text(login.user) + text(login.password)
    with socket.create_connection(("127.0.0.1", port), 60) as stream, stream.makefile("rb") as answers:
        stream.sendall(b"\x10" + bytes([len(body)]) + body)
        return answers.read(4)[3]


def text(words: str) -> bytes:
    return len(words).to_bytes(2, "big") + words.encode()


@needs_mosquitto
def test_only_its_login_gets_in() -> None:
    with Broker(Mosquitto(), BrokerPlace()) as broker:
        assert connect(broker.port, broker.login) == ACCEPTED
        assert connect(broker.port, None) == REFUSED
        assert connect(broker.port, Login(broker.login.user, "guess")) == REFUSED
        assert broker.facts().version


@needs_mosquitto
def test_passwords_are_those_of_its_own_program(tmp_path: Path) -> None:
    program = installed("mosquitto_passwd")
    if program is None:
        pytest.skip("mosquitto_passwd is not installed: make system")
    theirs = tmp_path / "theirs"
    subprocess.run([program, "-b", "-c", str(theirs), "ada", "secret"], check=True, capture_output=True)
    ours = password_line(Login("ada", "secret"))
    form = [[len(part) for part in line.strip().split("$")] for line in (theirs.read_text(), ours)]
    assert form[0] == form[1]
    assert theirs.read_text().split("$")[:3] == ours.split("$")[:3]


def test_its_configuration_bounds_and_encrypts(tmp_path: Path) -> None:
    tls = Tls("authority", "certificate", "key", require_client=True)
    site = Site(
        tmp_path, BrokerPlace("10.77.0.1"), 40000, Login("ada", "secret"), tls, message_bytes=1000, queue_bytes=5000
    )
    lines = configuration(site).splitlines()
    assert "listener 40000 10.77.0.1" in lines
    assert {"allow_anonymous false", "persistence false", "message_size_limit 1000", "max_queued_bytes 5000"} <= set(
        lines
    )
    assert {"tls_version tlsv1.3", "require_certificate true"} <= set(lines)
    assert not any("secret" in line for line in lines)
    assert "secret" not in (tmp_path / "passwords").read_text()
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0
