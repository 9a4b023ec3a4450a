"""A small convolutional network for CIFAR-10, in PyTorch."""
