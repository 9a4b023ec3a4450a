"""UniFL figure 10."""
