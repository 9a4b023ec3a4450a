"""A Flower app that sends a payload to clients and gets it back."""
