//! Rounds of federated averaging over the engine: a server that folds, and a client with a model in its arena.

mod client;
mod client_sink;
mod reduce;
mod repair;
mod report;
mod server;
mod server_sink;
mod staging;

pub use self::client::{Client, ClientEvent};
pub use self::repair::RepairRule;
pub(crate) use self::report::transfer_json;
pub use self::server::Server;
