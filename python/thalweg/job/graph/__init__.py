"""A job without a server: nodes on a graph, their iterations, and the record that all of them write together."""
