"""Benchmarks: thalweg's figures, each measured in the same run as the reference that it is compared with."""
