"""Flower: a SuperLink and ``flwr run`` at the server, a SuperNode at each client, as its documentation deploys them.

Documentation: flower.ai/docs/framework, "Run Flower with the Deployment Engine". The app in the folder ``app`` uses the
strategy FedAvg and the message API.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from contract import Job, job

BIN = Path(sys.executable).parent
APP = Path(__file__).parent / "app"


def environment(job: Job) -> dict[str, str]:
    home = job.folder / f"home-{job.index}"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "bench"\n[superlink.bench]\naddress = "{job.server}"\ninsecure = true\n'
    )
    return {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "HOME": str(home)}


def serve(job: Job) -> None:
    environ = environment(job)
    link = [str(BIN / "flower-superlink"), "--insecure", "--host", job.addresses[0], "--port", str(job.port)]
    superlink = subprocess.Popen([*link, "--disable-runtime-dependency-installation"], env=environ)
    while not listens(job):
        time.sleep(0.1)
    job.ready()
    values = {"num-server-rounds": job.rounds, "folder": f'"{job.folder}"'}
    config = " ".join(f"{key}={value}" for key, value in values.items())
    run = [str(BIN / "flwr"), "run", str(APP), "bench", "--stream", "--run-config", config]
    subprocess.run(run, env=environ, check=True)
    superlink.terminate()
    superlink.wait()


def listens(job: Job) -> bool:
    with socket.socket() as one:
        return one.connect_ex((job.addresses[0], job.port)) == 0


def take_part(job: Job) -> None:
    node = [str(BIN / "flower-supernode"), "--insecure", "--superlink", job.server]
    node += ["--host", job.addresses[job.index], "--port", str(job.port + job.index)]
    node += ["--node-config", f'partition-id={job.index} num-partitions={job.clients} folder="{job.folder}"']
    os.execve(node[0], node, environment(job))  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    one = job()
    serve(one) if one.index == 0 else take_part(one)
