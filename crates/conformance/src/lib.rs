//! The transport contract as tests; one macro line runs them all.
