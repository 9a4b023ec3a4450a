"""UniFL figures 5 and 6."""
