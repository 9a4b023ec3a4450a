"""Clients with faults, under a strategy that the legacy API gives to the ServerApp itself."""
