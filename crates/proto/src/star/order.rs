//! Whether the server serves clients at the same time, or one after the other as FedComm's server does.

use std::cmp::Ordering;

/// How the global model is sent to the clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fanout {
    /// To all clients at once, in one group send.
    #[default]
    Concurrent,
    /// To one client after the other: the next client's turn comes when the model was sent to the previous
    /// one.
    Sequential,
}

/// How updates are received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Gather {
    /// From all clients at once, as far as the staging budget allows.
    #[default]
    Concurrent,
    /// From one client after the other: the next client's turn comes when the previous update was received,
    /// or is no longer expected.
    InOrder,
}

/// The order of clients by name, which is the same in each round and each run. Shorter names come first, so
/// client-2 comes before client-10.
pub(crate) fn by_name(one: &str, other: &str) -> Ordering {
    (one.len(), one).cmp(&(other.len(), other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_ordered_as_numbers() {
        let mut names = ["client-10", "client-2", "b", "client-1"];
        names.sort_by(|a, b| by_name(a, b));
        assert_eq!(names, ["b", "client-1", "client-2", "client-10"]);
    }
}
