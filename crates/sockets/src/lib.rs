//! Kernel TCP connections: connecting within a time limit, accepting behind an admission queue, the socket
//! options of a job, and TLS 1.3.
//!
//! Nothing here knows of links or frames. The transports tcp, grpc, mqtt, amqp, zmq and unifl are built on
//! it.
#![deny(unsafe_code)] // `kernel` allows it for three system calls

pub mod dial;
pub mod door;
pub mod kernel;
pub mod socket;
pub mod tls;
