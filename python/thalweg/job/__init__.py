"""Runs a job: the server, clients, nodes and their processes, with the emulated network and the broker around them."""
