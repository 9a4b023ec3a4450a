"""A job with an aggregation tree: its root, its nodes, where clients belong, and the engines that start nodes."""
