"""UniFL figure 4."""
