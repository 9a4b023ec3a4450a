//! Wrappers over any transport: seeded faults, a rate limit, a trace.
