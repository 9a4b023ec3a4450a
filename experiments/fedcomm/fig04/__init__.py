"""FedComm figure 4."""
