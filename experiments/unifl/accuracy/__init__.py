"""UniFL: accuracy."""
