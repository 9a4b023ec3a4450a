"""The papers' experiments, repeated: one folder for each figure. `python -m experiments --help`."""
