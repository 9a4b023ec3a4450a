"""RabbitMQ as a private broker: its configuration, which clients it accepts, and that it leaves nothing behind."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import socket
import struct
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.brokers.test_broker import Heard
from thalweg.brokers import Broker, BrokerPlace, Login, Site, Tls, programs
from thalweg.brokers.rabbitmq import GRACE_SECONDS, RabbitMq, configuration, definitions, user

needs_rabbitmq = pytest.mark.skipif(RabbitMq().find() is None, reason="rabbitmq-server is not installed: make system")
STANDARD_PORTS = {4369, 5672, 15672, 25672}
METHOD, TUNE, CLOSE = 1, (10, 30), (10, 50)


def log_in(port: int, login: Login) -> tuple[int, int]:
    """Log in by PLAIN; return class and method of the server's answer (AMQP 0-9-1, section 1.4)."""
    words = f"\0{login.user}\0{login.password}".encode()
    # With this capability a client asks the server to send the reason of a refusal.
    capable = field(b"authentication_failure_close", b"t\1")
    table = field(b"capabilities", b"F" + struct.pack(">I", len(capable)) + capable)
    body = struct.pack(">HHI", 10, 11, len(table)) + table
    body += b"\5PLAIN" + struct.pack(">I", len(words)) + words + b"\5en_US"
    with socket.create_connection(("127.0.0.1", port), 60) as stream, stream.makefile("rb") as answers:
        stream.sendall(b"AMQP\0\0\x09\1")
        frame(answers)
        stream.sendall(struct.pack(">BHI", METHOD, 0, len(body)) + body + b"\xce")
        answer = frame(answers)
    return struct.unpack(">HH", answer[:4])


def field(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + value


def frame(stream: BinaryIO) -> bytes:
    (length,) = struct.unpack(">3xI", stream.read(7))
    return stream.read(length + 1)[:-1]


@dataclasses.dataclass(frozen=True)
class TakenPlace(BrokerPlace):
    """Loopback on which, in each of three tries, another program has taken one of the three chosen ports meanwhile."""

    port: int = 0
    asked: list[int] = dataclasses.field(default_factory=list)

    def free_port(self) -> int:
        listener_of_the_first, epmd_of_the_second, distribution_of_the_third = 0, 4, 8
        at = len(self.asked)
        is_taken = at in {listener_of_the_first, epmd_of_the_second, distribution_of_the_third}
        self.asked.append(self.port if is_taken else super().free_port())
        return self.asked[at]


@needs_rabbitmq
def test_other_ports_are_taken_where_somebody_was_faster() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        place = TakenPlace(port=taken.getsockname()[1])
        with Broker(RabbitMq(), place) as broker:
            assert len(place.asked) == 12
            assert listening(broker) == set(place.asked[9:])
            assert log_in(broker.port, broker.login) == TUNE


@needs_rabbitmq
def test_only_its_login_gets_in_and_nothing_of_it_is_left() -> None:
    heard = Heard()
    with Broker(RabbitMq(), BrokerPlace(), on_event=heard) as broker:
        assert log_in(broker.port, broker.login) == TUNE
        assert log_in(broker.port, Login(broker.login.user, "guess")) == CLOSE
        assert log_in(broker.port, Login("guest", "guest")) == CLOSE
        assert broker.facts().version
        ports = listening(broker)
        assert len(ports) == 3
        assert not ports & STANDARD_PORTS
        heard.wait("login refused")
        assert not any(broker.login.password in event for event in heard.texts)
        pid, folder = broker.pid, broker.folder
    assert not Path(f"/proc/{pid}").exists()
    assert not folder.exists()
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 10)


def listening(broker: Broker) -> set[int]:
    """Return the ports that the node's configuration and environment name."""
    environment = Path(f"/proc/{broker.pid}/environ").read_bytes().decode(errors="replace")
    return {broker.port} | {int(port) for port in re.findall(r"(?:DIST|EPMD)_PORT=(\d+)", environment)}


def test_its_configuration_bounds_and_encrypts(tmp_path: Path) -> None:
    tls = Tls("authority", "certificate", "key", require_client=True)
    login = Login("ada", "secret")
    site = Site(tmp_path, BrokerPlace("10.77.0.1"), 40000, login, tls, message_bytes=1000, queue_bytes=5000)
    lines = set(configuration(site).splitlines())
    assert {"listeners.tcp = none", "listeners.ssl.1 = 10.77.0.1:40000", "max_message_size = 1000"} <= lines
    assert {"ssl_options.versions.1 = tlsv1.3", "ssl_options.fail_if_no_peer_cert = true"} <= lines
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0
    words = json.loads(definitions(site))
    assert [user["name"] for user in words["users"]] == ["ada"]
    assert words["policies"][0]["definition"]["max-length-bytes"] == 20000
    assert "secret" not in json.dumps(words)


def test_a_password_is_kept_as_a_salted_hash() -> None:
    kept = base64.b64decode(user(Login("ada", "secret"))["password_hash"])
    assert kept[4:] == hashlib.sha256(kept[:4] + b"secret").digest()


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("2026-01-01 00:00:00.000000+00:00 [info] <0.612.0> Server startup complete; 0 plugins started.", "ready"),
        ("\x1b[38;5;160m2026-01-01 00:00:00.000000+00:00 [error] <0.1.0> Failed to start: eaddrinuse", "port taken"),
        (
            "2026-01-01 00:00:00.000000+00:00 [warning] <0.1.0> memory resource limit alarm set on node 'thalweg'.",
            "event",
        ),
        ("2026-01-01 00:00:00.000000+00:00 [info] <0.1.0> accepting AMQP connection", None),
    ],
)
def test_it_reads_its_log(line: str, kind: str | None) -> None:
    sign = RabbitMq().read(line)
    assert (sign and sign.kind) == kind
    assert sign is None or "\x1b" not in sign.text
    assert sign is None or "2026" not in sign.text


def test_the_users_settings_for_other_nodes_do_not_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if RabbitMq().find() is None:
        pytest.skip("rabbitmq-server is not installed: make system")
    monkeypatch.setenv("RABBITMQ_NODE_PORT", "5672")
    launch = RabbitMq().launch(Site(tmp_path, BrokerPlace(), 40000, Login("ada", "secret")))
    assert launch.environment["RABBITMQ_NODE_PORT"] == ""
    assert launch.environment["HOME"] == str(tmp_path)
    assert "secret" not in " ".join([*launch.command, *launch.environment.values()])
    assert launch.grace == GRACE_SECONDS


def test_it_is_the_program_of_the_transport() -> None:
    assert [program.name for program in programs("amqp")] == ["rabbitmq-server"]
