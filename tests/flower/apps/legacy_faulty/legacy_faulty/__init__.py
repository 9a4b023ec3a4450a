"""Clients with faults in an app of the legacy API, whose strategy is an argument of ServerApp."""
