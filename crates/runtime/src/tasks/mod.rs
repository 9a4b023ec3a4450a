//! Tasks over the engine: a server that sends heads and tensors to named members, and clients that answer.

mod client;
mod folding;
mod options;
mod server;
mod sinks;
mod store;

pub use self::client::{TaskClient, TaskEvent};
pub use self::options::TaskServerOptions;
pub use self::server::{Judge, NewTask, TaskReply, TaskServer};
