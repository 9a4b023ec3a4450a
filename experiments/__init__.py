"""The papers' experiments, run again: one folder for each figure. `python -m experiments --help`."""
