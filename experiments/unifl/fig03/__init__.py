"""UniFL figure 3."""
