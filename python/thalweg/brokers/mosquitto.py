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
# Messages of at most the window of a link wait for a client; this many of the smallest are never reached.
MOST_QUEUED: Final = 4096
MOST_INFLIGHT: Final = 1024
KEY_ROUNDS: Final = 101
_READY: Final = re.compile(r"mosquitto version \S+ running")
_PORT_TAKEN: Final = re.compile(r"Address already in use")
_VERSION: Final = re.compile(r"mosquitto version (\S+)")
# What a record should name: messages it did not take or pass on, clients it did not let in, memory it did not get.
_EVENTS: Final = re.compile(
    r"being dropped|out of memory|memory limit|not authori[sz]ed|exceeds? .*limit|oversize|payload too large",
    re.IGNORECASE,
)
_STAMP: Final = re.compile(r"^\d+: ")


class Mosquitto:
    """The program of that name."""

    name: str = NAME

    def find(self) -> str | None:
        """Return where it is installed, or None."""
        return installed(NAME)

    def version(self) -> str | None:
        """Return its version, or None if it does not say."""
        program = self.find()
        if program is None:
            return None
        said = subprocess.run([program, "-h"], check=False, capture_output=True, text=True, timeout=10).stdout
        found = _VERSION.search(said)
        return None if found is None else found[1]

    def launch(self, site: Site) -> Launch:
        """Write its configuration, password file and access list. Raises OSError."""
        site.login.write(site.folder / "login")
        path = site.write("mosquitto.conf", configuration(site))
        return Launch([self.find() or NAME, "-c", str(path)])

    def read(self, line: str) -> Sign | None:
        """Return what a line of its log means, if that matters."""
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
        # Started as root it would otherwise become a user who cannot read these files.
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
        # With room for the header, so that the limit on messages is the one that is met.
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
