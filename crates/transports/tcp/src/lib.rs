//! The tcp transport: one or several kernel TCP connections a link, in the clear or under TLS.
