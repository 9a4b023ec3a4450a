"""Tests of the table that compares systems (benches/systems)."""
