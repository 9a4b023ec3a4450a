//! The state machines of this crate over networks in virtual time. One program holds all tests, so that the
//! network and the parties in `common` are compiled once.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

mod choice;
mod common;
mod confirming;
mod counting;
mod dropout;
mod faults;
mod forward;
mod fuzz_client;
mod fuzz_server;
mod fuzz_tasks;
mod leaving;
mod liveness;
mod loss;
mod moving;
mod node;
mod order;
mod partial;
mod repair;
mod round_trips;
mod rounds;
mod selecting;
mod sessions;
mod staging;
mod submission;
mod tasks;
mod timeout;
mod timing;
mod tolerance;
mod tree;
mod versions;
