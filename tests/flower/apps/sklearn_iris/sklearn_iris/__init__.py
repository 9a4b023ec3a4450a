"""Logistic regression over a data set of flwr_datasets, in scikit-learn."""
