"""UniFL figure 7."""
