"""FedComm figure 7."""
