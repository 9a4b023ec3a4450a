"""Binds a model's tensors to an arena, chooses which of them travel, and keeps them in the arena during training."""
