"""Clients that add 1 to all that they are sent."""
