//! The masking TCP endpoint: against a scripted client (`client`), against honest senders over lossy links (`world`).

mod app;
mod client;
mod states;
mod traps;
mod wire;
