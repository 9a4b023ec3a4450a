"""FedComm (Cleland, Wu, Ullah, Varghese), figures 3 to 11."""
