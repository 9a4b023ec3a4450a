//! Whether clients are served at the same time, or one after the other as FedComm's server does.

use std::cmp::Ordering;

/// How the global model goes out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fanout {
    /// To all clients in one call.
    #[default]
    Concurrent,
    /// To the first client; when it has been sent, to the next.
    Sequential,
}

/// How updates come in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Gather {
    /// From all clients at once, as far as staging has room.
    #[default]
    Concurrent,
    /// From the first client; when its update is in, or is not to be expected, from the next.
    InOrder,
}

/// The order of clients: by their names, so that it is the same in each round and each run. Shorter names come
/// first: client-2 before client-10.
pub(crate) fn by_name(one: &str, other: &str) -> Ordering {
    (one.len(), one).cmp(&(other.len(), other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_count_as_such() {
        let mut names = ["client-10", "client-2", "b", "client-1"];
        names.sort_by(|a, b| by_name(a, b));
        assert_eq!(names, ["b", "client-1", "client-2", "client-10"]);
    }
}
