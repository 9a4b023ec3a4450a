"""RabbitMQ, the broker of FedComm's AMQP (section IV.A): one private node, without plugins or peers.

A node is an Erlang program that other nodes can join. So it needs two more ports: one for Erlang's distribution
protocol, and one for epmd, the Erlang port mapper. This node has its own epmd; both ports are on loopback. Its Erlang
cookie is in its folder.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Final

from thalweg.brokers.base import Launch, Login, Sign, Site, installed
from thalweg.errors import BrokerError
from thalweg.machine.parent import tied

NAME: Final = "rabbitmq-server"
# Debian's ``rabbitmq-server`` in PATH changes to another user first. The scripts here do not.
SCRIPTS: Final = Path("/usr/lib/rabbitmq/bin")
ERLANG: Final = Path("/usr/lib/erlang/bin")
NODE: Final = "thalweg@localhost"
GRACE_SECONDS: Final = 10.0
# The node accepts no messages while it uses more than this share of the machine's memory: RabbitMQ's default.
MEMORY_SHARE: Final = 0.4
FREE_DISK_BYTES: Final = 64 << 20
# A queue holds ``queue_bytes`` for each of this many clients, because the updates of all clients wait in one queue.
QUEUES: Final = 4
# The shell starts epmd and then becomes the node by exec, so epmd is a child of the node.
START: Final = '"$@" & exec "$THALWEG_NODE"'
_READY: Final = re.compile(r"Server startup complete")
# ``nodistribution``: another program has taken epmd's port.
_PORT_TAKEN: Final = re.compile(
    r"eaddrinuse|port_in_use|distribution port \d+|dist_port_already_used|already in use|nodistribution", re.IGNORECASE
)
# Events for the record: alarms of memory and disk, clients that the broker refused, messages that it refused.
_EVENTS: Final = re.compile(
    r"resource limit alarm|alarm (?:set|cleared)|login refused|not found|missed heartbeats|larger than configured"
    r"|has timed out|no space left",
    re.IGNORECASE,
)
_STAMP: Final = re.compile(r"^\d{4}-\d\d-\d\d \S+ \[\w+\] <[\d.]+> ")
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_VERSION: Final = re.compile(r"rabbitmq_server-([\d.]+)")


class RabbitMq:
    """The broker program ``rabbitmq-server``."""

    name: str = NAME

    def find(self) -> str | None:
        """Return the program's path, or None if it is not installed."""
        own = SCRIPTS / NAME
        return str(own) if own.is_file() else installed(NAME)

    def version(self) -> str | None:
        """Return its version from its folder's name, or None. The program itself takes seconds to print it."""
        program = self.find()
        match = None if program is None else _VERSION.search(str(Path(program).resolve()))
        return None if match is None else match[1]

    def launch(self, site: Site) -> Launch:
        """Write its configuration, user and cookie. Raises OSError, BrokerError."""
        site.login.write(site.folder / "login")
        site.write("definitions.json", definitions(site))
        site.write("rabbitmq.conf", configuration(site))
        site.write("enabled_plugins", "[].\n")
        site.write("environment", "")
        site.write(".erlang.cookie", secrets.token_hex(16))
        epmd_port = site.place.free_port()
        command = ["/bin/sh", "-c", START, "sh", *_epmd(), "-port", str(epmd_port), "-address", "127.0.0.1"]
        return Launch(command, _environment(site, self.find() or NAME, epmd_port), GRACE_SECONDS)

    def read(self, line: str) -> Sign | None:
        """Return what a line of its log means; None for a line without a meaning here."""
        text = _STAMP.sub("", _COLOUR.sub("", line))
        if _READY.search(text):
            return Sign("ready")
        if _PORT_TAKEN.search(text):
            return Sign("port taken", text)
        return Sign("event", f"{NAME}: {text}") if _EVENTS.search(text) else None


def _epmd() -> list[str]:
    """Return the command that starts epmd. On Linux epmd then ends with its node, even if the node is killed."""
    program = shutil.which("epmd") or (str(ERLANG / "epmd") if (ERLANG / "epmd").is_file() else None)
    if program is None:
        raise BrokerError("epmd is not installed, which a RabbitMQ node needs", "Install Erlang (erlang-base)")
    return [*tied(), program]


def _environment(site: Site, program: str, epmd_port: int) -> dict[str, str]:
    """Return the environment of the node's script, without the user's settings for other nodes."""
    at = {name: str(site.folder / name) for name in ("mnesia", "log", "generated", "feature_flags", "pid")}
    return {
        **{name: "" for name in os.environ if name.startswith("RABBITMQ_")},
        "THALWEG_NODE": program,
        "HOME": str(site.folder),
        # The script becomes the node by exec, instead of staying its parent and translating signals.
        "detached": "yes",
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": NODE,
        "RABBITMQ_DIST_PORT": str(site.place.free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_CONFIG_FILE": str(site.folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(site.folder / "advanced.config"),
        "RABBITMQ_CONF_ENV_FILE": str(site.folder / "environment"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(site.folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": at["mnesia"],
        "RABBITMQ_LOG_BASE": at["log"],
        "RABBITMQ_GENERATED_CONFIG_DIR": at["generated"],
        "RABBITMQ_FEATURE_FLAGS_FILE": at["feature_flags"],
        "RABBITMQ_PID_FILE": at["pid"],
    }


def configuration(site: Site) -> str:
    """Return the text of rabbitmq.conf for a site, and write the files that it names. Raises OSError."""
    listener = f"{site.place.address.strip('[]')}:{site.port}"
    lines = [
        f"load_definitions = {site.folder / 'definitions.json'}",
        "log.console = true",
        "log.console.level = info",
        "log.file = false",
        f"max_message_size = {site.message_bytes}",
        f"vm_memory_high_watermark.relative = {MEMORY_SHARE}",
        f"disk_free_limit.absolute = {FREE_DISK_BYTES}",
    ]
    if site.tls is None:
        lines.append(f"listeners.tcp.1 = {listener}")
    else:
        lines += [
            "listeners.tcp = none",
            f"listeners.ssl.1 = {listener}",
            f"ssl_options.cacertfile = {site.write('ca.crt', site.tls.authority)}",
            f"ssl_options.certfile = {site.write('server.crt', site.tls.certificate)}",
            f"ssl_options.keyfile = {site.write('server.key', site.tls.key)}",
            "ssl_options.versions.1 = tlsv1.3",
            "ssl_options.verify = verify_peer",
            f"ssl_options.fail_if_no_peer_cert = {str(site.tls.require_client).lower()}",
        ]
    return "".join(f"{line}\n" for line in lines)


def definitions(site: Site) -> str:
    """Return the broker's users and limits as JSON: one user, so RabbitMQ's default user is absent; bounded queues."""
    bound = {"max-length-bytes": QUEUES * site.queue_bytes, "overflow": "reject-publish"}
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    content = {
        "users": [user(site.login)],
        "vhosts": [{"name": "/"}],
        "permissions": [{"user": site.login.user, "vhost": "/", **everything}],
        "policies": [{"vhost": "/", "name": "bound", "pattern": "", "apply-to": "queues", "definition": bound}],
    }
    return json.dumps(content)


def user(login: Login) -> dict[str, str]:
    """Return a user in RabbitMQ's format: four bytes of salt, then SHA-256 of the salt and the password."""
    salt = secrets.token_bytes(4)
    hashed = hashlib.sha256(salt + login.password.encode()).digest()
    return {
        "name": login.user,
        "password_hash": base64.b64encode(salt + hashed).decode(),
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": "",
    }
