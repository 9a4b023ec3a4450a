"""An app that drives Flower's legacy workflow by itself, with a mod and with state that clients keep."""
