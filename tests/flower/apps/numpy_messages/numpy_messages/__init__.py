"""Linear regression by the message API, in NumPy."""
