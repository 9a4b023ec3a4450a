"""Sends one message to each client; none can answer."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(4, np.float32))})})
    messages = [Message(content, dst_node_id=node, message_type=MessageType.TRAIN) for node in grid.get_node_ids()]
    replies = list(grid.send_and_receive(messages, timeout=float(context.run_config["timeout"])))
    if not replies or not all(reply.has_error() for reply in replies):
        raise RuntimeError("a client answered with an app that cannot be imported")
