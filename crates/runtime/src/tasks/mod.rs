//! Tasks over the engine: a server that sends heads and tensors to named members, and clients that answer.

mod client;
mod folding;
mod options;
mod server;
mod sinks;
mod store;

use thalweg_pki::Role;
use thalweg_wire::control::Purpose;

/// What a server's members are, and what their tokens are for.
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
