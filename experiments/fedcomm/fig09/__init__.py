"""FedComm figure 9."""
