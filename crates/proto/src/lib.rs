//! Session, round and reassembly as state machines without IO.
