"""The legacy FedAvg, without a server_fn; it waits for two nodes."""

from __future__ import annotations

import numpy as np
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerConfig
from flwr.server.strategy import FedAvg

strategy = FedAvg(min_available_clients=2, initial_parameters=ndarrays_to_parameters([np.zeros(3)]))
app = ServerApp(config=ServerConfig(num_rounds=2), strategy=strategy)
