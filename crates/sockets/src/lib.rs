//! Kernel TCP connections: dialed within a time, accepted behind an admission queue, with the options of a job, and
//! under TLS 1.3.
//!
//! Nothing here knows of links or frames: tcp, grpc, mqtt, amqp, zmq and unifl are made of it.
#![deny(unsafe_code)] // `kernel` has it, for two calls

pub mod dial;
pub mod door;
pub mod kernel;
pub mod socket;
pub mod tls;
