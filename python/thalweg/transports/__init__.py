"""The transports of this build, and what links to peers need: options, trust, certificates, tokens."""
