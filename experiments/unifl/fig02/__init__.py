"""UniFL figure 2."""
