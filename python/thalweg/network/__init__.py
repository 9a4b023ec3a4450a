"""From the words for a network to what an emulator takes: profiles, shapes, topologies, changes."""
