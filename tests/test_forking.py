"""Objects with threads of the core belong to their process: using one in a forked child raises, and the child ends."""

from __future__ import annotations

import subprocess
import sys
import textwrap

# Seconds after which a hanging test fails.
LIMIT = 60.0

PARENT = """
import os, sys, traceback
import numpy as np
import thalweg
from thalweg import _core

class App:
    def model(self): return {"w": np.zeros(10, np.float32)}
    def train(self, model, data, config): return 1, {}

server, tasks = thalweg.Server(App(), clients=1), thalweg.TaskServer()
node = thalweg.Node(App(), name="node", data=())
client = thalweg.Client(App(), server.address, name="a", data=())
member = thalweg.TaskClient(tasks.address, name="b")
task = tasks.send(None, to="b")

def within(context, use):
    with context:
        use()

USES = {
    "Server": [
        lambda: server.wait(1), server.advance, server.round, lambda: server.address, server.absent, server.close,
        lambda: list(thalweg.fedavg(server, 1)), lambda: server.__exit__(None, None, None),
        lambda: within(server, server.advance),
    ],
    "Client": [client.run, client.close],
    "TaskServer": [
        lambda: tasks.send(None), lambda: tasks.wait(1), lambda: tasks.members, lambda: tasks.address, tasks.absent,
        lambda: tasks.forget("b"), tasks.close, lambda: within(tasks, tasks.absent), lambda: within(task, task.cancel),
    ],
    "TaskClient": [
        lambda: next(member), lambda: member.run(lambda task: 1), member.close,
        lambda: within(member, lambda: next(member)),
    ],
    "Node": [
        lambda: node.address, lambda: node.connected, lambda: node.meet({"x": "tcp://127.0.0.1:1"}), node.gather,
        lambda: list(thalweg.dpsgd(node, 1)), node.close, lambda: within(node, node.gather),
    ],
}
child = os.fork()
if child == 0:
    for name, uses in USES.items():
        for use in uses:
            try:
                use()
            except _core.CoreError as error:
                assert error.kind == "forked", error.kind
                assert str(error).startswith(f"{name}: it was made in process {os.getppid()}"), error
                assert error.__context__ is None, "it is told once"
            else:
                raise AssertionError(f"a use of {name} did nothing")
    print("all of it was refused", flush=True)
    sys.exit(0)  # all objects are dropped here
_, status = os.waitpid(child, 0)
print("the child ended with", os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_is_told_at_once_and_ends() -> None:
    """The parent's objects still work: afterwards its client takes part in a round."""
    after = """
import threading
threading.Thread(target=client.run, daemon=True).start()
print("participants", [done.participants for done in thalweg.fedavg(server, 1)])
server.close()
"""
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PARENT + after)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert said.stdout.splitlines() == ["all of it was refused", "the child ended with 0", "participants [['a']]"], said
    assert said.returncode == 0
