"""An app for tests of failures: one partition's client misbehaves as the run's configuration says."""
