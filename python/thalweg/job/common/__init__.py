"""What jobs of every shape share: parties, processes, the network and the broker around them, and metrics."""
