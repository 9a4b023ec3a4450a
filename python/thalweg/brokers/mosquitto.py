"""Mosquitto, the broker of FedComm's MQTT (section IV.A): one private process, without persistence."""

from __future__ import annotations

import base64
import hashlib
import os
import pwd
import re
import secrets
import subprocess
from typing import Final

from thalweg.brokers.base import Launch, Login, Sign, Site, installed

NAME: Final = "mosquitto"
# Large enough never to be reached: a link's window holds fewer messages than this, even if they are the smallest.
MOST_QUEUED: Final = 4096
MOST_INFLIGHT: Final = 1024
KEY_ROUNDS: Final = 101
_READY: Final = re.compile(r"mosquitto version \S+ running")
_PORT_TAKEN: Final = re.compile(r"Address already in use")
_VERSION: Final = re.compile(r"mosquitto version (\S+)")
# Events for the record: messages that the broker dropped or refused, clients that it refused, memory that it lacked.
_EVENTS: Final = re.compile(
    r"being dropped|out of memory|memory limit|not authori[sz]ed|exceeds? .*limit|oversize|payload too large",
    re.IGNORECASE,
)
_STAMP: Final = re.compile(r"^\d+: ")


class Mosquitto:
    """The broker program ``mosquitto``."""

    name: str = NAME

    def find(self) -> str | None:
        """Return the program's path, or None if it is not installed."""
        return installed(NAME)

    def version(self) -> str | None:
        """Return its version, or None if it is unknown."""
        program = self.find()
        if program is None:
            return None
        usage = subprocess.run([program, "-h"], check=False, capture_output=True, text=True, timeout=10).stdout
        match = _VERSION.search(usage)
        return None if match is None else match[1]

    def launch(self, site: Site) -> Launch:
        """Write its configuration, password file and access list. Raises OSError."""
        site.login.write(site.folder / "login")
        path = site.write("mosquitto.conf", configuration(site))
        return Launch([self.find() or NAME, "-c", str(path)])

    def read(self, line: str) -> Sign | None:
        """Return what a line of its log means; None for a line without a meaning here."""
        text = _STAMP.sub("", line)
        if _READY.search(text):
            return Sign("ready")
        if _PORT_TAKEN.search(text):
            return Sign("port taken", text)
        return Sign("event", f"{NAME}: {text}") if _EVENTS.search(text) else None


def configuration(site: Site) -> str:
    """Return the text of mosquitto.conf(5) for a site, and write the files that it names. Raises OSError."""
    passwords = site.write("passwords", password_line(site.login))
    access = site.write("access", f"user {site.login.user}\ntopic readwrite #\n")
    lines = [
        f"listener {site.port} {site.place.address.strip('[]')}",
        "allow_anonymous false",
        f"password_file {passwords}",
        f"acl_file {access}",
        # Without this, a broker that root starts changes to a user who cannot read these files.
        f"user {pwd.getpwuid(os.geteuid()).pw_name}",
        "persistence false",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "log_type information",
        "connection_messages false",
        "sys_interval 0",
        "set_tcp_nodelay true",
        f"message_size_limit {site.message_bytes}",
        # Leave room for the header, so that ``message_size_limit`` applies first.
        f"max_packet_size {site.message_bytes + (64 << 10)}",
        f"max_inflight_messages {MOST_INFLIGHT}",
        f"max_queued_messages {MOST_QUEUED}",
        f"max_queued_bytes {site.queue_bytes}",
    ]
    if site.tls is not None:
        lines += [
            f"cafile {site.write('ca.crt', site.tls.authority)}",
            f"certfile {site.write('server.crt', site.tls.certificate)}",
            f"keyfile {site.write('server.key', site.tls.key)}",
            "tls_version tlsv1.3",
            f"require_certificate {str(site.tls.require_client).lower()}",
        ]
    return "".join(f"{line}\n" for line in lines)


def password_line(login: Login) -> str:
    """Return the line of a password file as mosquitto_passwd(1) writes it: PBKDF2 with SHA-512."""
    salt = secrets.token_bytes(12)
    key = hashlib.pbkdf2_hmac("sha512", login.password.encode(), salt, KEY_ROUNDS, 64)
    salted, keyed = (base64.b64encode(part).decode() for part in (salt, key))
    return f"{login.user}:$7${KEY_ROUNDS}${salted}${keyed}\n"
