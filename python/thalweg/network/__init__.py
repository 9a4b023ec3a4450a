"""Turns a plan's [network] into the settings of an emulator: profiles, shapes, topologies, changes."""
