"""An app for tests of what goes wrong: one partition's client misbehaves, as the run's configuration says."""
