"""Turns a plan's [network] into what an emulator takes: profiles, shapes, topologies, changes."""
