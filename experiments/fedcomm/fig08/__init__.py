"""FedComm figure 8."""
