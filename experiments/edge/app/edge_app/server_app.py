"""Flower's FedAvg over the clients; writes down when each round ended, and the accuracy of its model."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from edge_app import learning

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    config = context.run_config
    data = learning.test_part()

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = {name: array.numpy() for name, array in arrays.items()}
        share = learning.accuracy(model, data)
        learning.write_round(str(config["output"]), number, model, share)
        return MetricRecord({"accuracy": share})

    clients = int(config["clients"])
    strategy = FedAvg(
        fraction_train=float(config["fraction"]),
        fraction_evaluate=0.0,
        min_train_nodes=int(config["least-trained"]),
        min_evaluate_nodes=1,
        min_available_nodes=int(config.get("least", clients)),
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({name: Array(values) for name, values in learning.new_model().items()}),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )
