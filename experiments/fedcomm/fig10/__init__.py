"""FedComm figure 10."""
