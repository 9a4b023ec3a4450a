"""What runs a job: the server, its clients, their processes, the network and the broker around them."""
