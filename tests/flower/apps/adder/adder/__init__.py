"""Clients that add 1 to each value that they receive."""
