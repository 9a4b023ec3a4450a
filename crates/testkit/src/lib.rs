//! Test doubles that tests of several crates use. No product code depends on this crate: only
//! `[dev-dependencies]` name it.
//!
//! [`switchboard`] carries messages within one process, in place of a broker. [`trace`] is a layer that
//! records what passes over links.
#![forbid(unsafe_code)]

pub mod switchboard;
pub mod trace;
