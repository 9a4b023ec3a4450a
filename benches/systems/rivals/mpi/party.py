"""MPI with mpi4py and Debian's MPICH. A star is a broadcast and a reduce with the server as root.

Documentation: mpi4py.readthedocs.io (methods with a capital letter move buffers), and MPICH's wiki on Hydra. Usually
``mpiexec`` starts the ranks by ssh. With its launcher ``manual`` it prints a command for each host, which the party
there runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
from contract import Job, job, train, wait_for


def launch(job: Job) -> None:
    """At the server start mpiexec. At each party start the proxy, which starts that party's ranks."""
    # mpi4py's wheel looks for the library under its usual name, which Debian's package does not have.
    names = job.folder / f"libraries-{job.index}"
    names.mkdir()
    (names / "libmpi.so.12").symlink_to(job.options["library"])
    os.environ["LD_LIBRARY_PATH"] = str(names)
    if job.device != "lo":
        # Otherwise MPICH would see that all hosts are on one machine, and use shared memory instead of the network.
        os.environ |= {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": job.device}
    if job.index == 0:
        hosts = job.folder / "hosts"
        # MPICH tells hosts apart by their addresses, so on loopback all ranks are on one host.
        counts = {host: job.addresses.count(host) for host in job.addresses}
        hosts.write_text("".join(f"{host}:{count}\n" for host, count in counts.items()))
        command = ["mpiexec", "-launcher", "manual", "-iface", job.device, "-f", str(hosts), "-n", str(job.parties)]
        program = [sys.executable, __file__, str(job.folder), "rank"]
        running = subprocess.Popen([*command, *program], stdout=subprocess.PIPE, text=True)
        job.ready()
        proxies = []
        for line in running.stdout:
            if line.startswith("HYDRA_LAUNCH:"):
                part = job.folder / "proxy.part"
                part.write_text(line.partition(":")[2])
                part.rename(job.folder / f"proxy-{len(proxies)}")
                proxies.append(line)
                if len(proxies) == 1:
                    mine = subprocess.Popen(line.partition(":")[2].split())
            else:
                print(line, end="", flush=True)
        mine.wait()
        sys.exit(running.wait())
    if job.addresses.count(job.addresses[0]) == 1:
        wait_for(job.folder / f"proxy-{job.index}")
        words = (job.folder / f"proxy-{job.index}").read_text().split()
        os.execvp(words[0], words)  # noqa: S606 - no shell is wanted


def star(job: Job, comm) -> None:
    model = np.empty(job.size // 4, np.float32)
    for number in range(1, job.rounds + 1):
        if job.index:
            comm.Bcast(model)
            train(model, job.index)
            comm.Reduce(model, None)
            continue
        model[:] = number
        mean = np.empty_like(model)
        begin = time.perf_counter()
        comm.Bcast(model)
        model[:] = 0
        comm.Reduce(model, mean)
        mean /= job.clients
        job.done(number, begin, time.perf_counter(), mean)


def allreduce(job: Job, comm) -> None:
    mean = np.empty(job.size // 4, np.float32)
    for number in range(1, job.rounds + 1):
        vector = job.model(number)
        train(vector, job.index + 1)
        job.barrier(number)
        begin = time.perf_counter()
        comm.Allreduce(vector, mean)
        mean /= job.parties
        job.done(number, begin, time.perf_counter(), mean)


def tree(job: Job, comm) -> None:
    model = np.empty(job.size // 4, np.float32)
    for number in range(1, job.rounds + 1):
        model[:] = number if job.index == 0 else 0
        job.barrier(number)
        begin = time.perf_counter()
        comm.Bcast(model)
        job.done(number, begin, time.perf_counter(), model)


if __name__ == "__main__":
    if sys.argv[2] == "rank":
        from mpi4py import MPI

        sys.argv[2] = str(MPI.COMM_WORLD.Get_rank())
        one = job()
        {"star": star, "allreduce": allreduce, "tree": tree}[one.work](one, MPI.COMM_WORLD)
    else:
        launch(job())
