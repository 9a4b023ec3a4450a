"""Output for people: units, tables, progress, error messages, and one JSON document."""
