//! A small certificate authority and job tokens.
