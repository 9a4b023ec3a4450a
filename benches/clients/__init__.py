"""The Python clients of the same protocols, with the same payload and brokers: what to be held against."""
