"""An app for tests of failures: the client of one partition has the fault that the run's configuration names."""
