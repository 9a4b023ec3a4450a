"""NVFlare: a provisioned project with a server and sites. It runs the recipe of FedAvg for NumPy arrays.

Documentation: nvflare.readthedocs.io, "Provisioning" and "FLARE Job Recipe". Provisioning sets up mutual TLS for the
links. The server makes the parties' configurations ("startup kits") in a folder that all parties can read.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
from contract import Job, job, wait_for

HERE = Path(__file__).parent
ADMIN = "admin@bench.org"
PROJECT = """
api_version: 3
name: bench
description: a benchmark
participants:
  - {{name: server, type: server, org: bench, fed_learn_port: {port}, admin_port: {admin}}}
{sites}
  - {{name: {name}, type: admin, org: bench, role: project_admin}}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args: {{template_file: [master_template.yml]}}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


def provision(job: Job) -> None:
    sites = "\n".join(f"  - {{name: site-{n}, type: client, org: bench}}" for n in range(1, job.clients + 1))
    text = PROJECT.format(port=job.port, admin=job.port + 1, sites=sites, name=ADMIN)
    (job.folder / "project.yml").write_text(text)
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(job.folder / "project.yml")]
    subprocess.run([*command, "-w", str(job.folder / "kits")], cwd=job.folder, check=True)


def kit(job: Job, name: str) -> Path:
    return job.folder / "kits" / "bench" / "prod_00" / name


def program(job: Job, side: str, name: str) -> list[str]:
    """Return the command that a startup kit's ``sub_start.sh`` runs for a server or a client."""
    where, options = kit(job, name), ["secure_train=true", "org=bench", "config_folder=config"]
    if side == "client":
        options.insert(1, f"uid={name}")
    module = f"nvflare.private.fed.app.{side}.{side}_train"
    return [sys.executable, "-u", "-m", module, "-m", str(where), "-s", f"fed_{side}.json", "--set", *options]


def submit(job: Job) -> None:
    """Submit the job with the administrator's startup kit, and wait for its end."""
    from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
    from nvflare.recipe.prod_env import ProdEnv

    sys.path.insert(0, str(HERE))
    from clock import Clock

    np.save(job.folder / "model.npy", job.model(1))
    recipe = NumpyFedAvgRecipe(
        name="bench",
        initial_ckpt=str(job.folder / "model.npy"),
        min_clients=job.clients,
        num_rounds=job.rounds,
        train_script=str(HERE / "train.py"),
    )
    recipe._job.to_server(Clock(folder=str(job.folder)), id="clock")  # noqa: SLF001 - a recipe has no public way
    run = recipe.execute(ProdEnv(str(kit(job, ADMIN)), login_timeout=60.0, username=ADMIN))
    run.get_result(900.0)


def serve(job: Job) -> None:
    provision(job)
    server = subprocess.Popen(program(job, "server", "server"))
    threading.Timer(0, job.ready).start()
    try:
        submit(job)
        wait_for(job.folder / "last")
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    one = job()
    os.environ["PYTHONPATH"] += os.pathsep + str(HERE)
    if one.index == 0:
        serve(one)
    else:
        command = program(one, "client", f"site-{one.index}")
        os.chdir(kit(one, f"site-{one.index}"))
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
