"""Repeats the papers' experiments, with one folder for each figure. See `python -m experiments --help`."""
