"""FedAvg over the clients' networks; tests the mean after each round, and may save network and results."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from torch_vision.task import Net, load_test, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    torch.manual_seed(config["seed"])
    torch.set_num_threads(1)
    batches = load_test(256)

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        net = Net()
        net.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = test(net, batches)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    result = FedAvg().start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"learning-rate": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    if config["output"]:
        accuracies = [metrics["accuracy"] for _, metrics in sorted(result.evaluate_metrics_serverapp.items())]
        torch.save(result.arrays.to_torch_state_dict(), f"{config['output']}.pt")
        Path(f"{config['output']}.json").write_text(json.dumps({"accuracy": accuracies}))
