"""UniFL: paths with bursts, reordering and lost acknowledgements."""
