"""FedComm figure 3."""
