"""A payload there and back, as a Flower app."""
