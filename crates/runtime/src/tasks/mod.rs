//! Tasks on the engine: a server sends heads and tensors to named members, and clients answer.

mod client;
mod folding;
mod options;
mod server;
mod sinks;
mod store;

use thalweg_pki::Role;
use thalweg_wire::control::Purpose;

/// The purpose with which members join the server, and the role of their tokens.
fn who(tree: bool) -> (Purpose, Role) {
    if tree {
        (Purpose::Tree, Role::TreeNode)
    } else {
        (Purpose::Tasks, Role::TaskMember)
    }
}

pub use self::client::{TaskClient, TaskEvent};
pub use self::options::TaskServerOptions;
pub use self::server::{Judge, NewTask, TaskReply, TaskServer};
