"""A model's tensors as views of the arena, which of them travel, and that they stay there."""
