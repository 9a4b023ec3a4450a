"""A Flower app that moves a model and trains nothing."""
