"""FedComm figure 5."""
