"""FedComm figure 6."""
