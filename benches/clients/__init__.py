"""Reference programs: Python clients of the same protocols, with the same payloads and brokers."""
