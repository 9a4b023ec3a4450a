"""UniFL figure 9."""
