"""FedComm figure 11."""
