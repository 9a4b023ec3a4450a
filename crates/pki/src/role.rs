//! Roles: what the holder of a token or certificate may be in a job.

use std::fmt;
use std::str::FromStr;

use crate::PkiError;

/// The role for which a token or certificate was issued. A peer is admitted only where its role belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A client of rounds: it sends updates of its own.
    Client,
    /// A member that is given tasks, such as a node of a Flower app. It answers for itself.
    TaskMember,
    /// A node of an aggregation tree: it adds up the updates of others.
    TreeNode,
    /// A node of a graph: it averages its model with its neighbours' models.
    GraphNode,
    /// The near end of forwarded TCP streams: it reaches the server behind the far end.
    Forward,
    /// A server. It is known by its certificate alone.
    Server,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 6] =
        [Self::Client, Self::TaskMember, Self::TreeNode, Self::GraphNode, Self::Forward, Self::Server];

    /// The roles for which `thalweg pki issue` makes tokens and certificates: all but the server.
    pub fn issued() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|role| *role != Self::Server)
    }

    /// The names of [`Role::issued`], for an error message.
    pub(crate) fn choices() -> String {
        Self::issued().map(Self::name).collect::<Vec<_>>().join(", ")
    }

    /// The role's name, as `thalweg pki issue --role` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::TaskMember => "task-member",
            Self::TreeNode => "tree-node",
            Self::GraphNode => "graph-node",
            Self::Forward => "forward",
            Self::Server => "server",
        }
    }

    /// The role's byte in signed messages. It must never change: another value would lock out every holder of
    /// a token.
    pub(crate) const fn byte(self) -> u8 {
        match self {
            Self::Client => 1,
            Self::TaskMember => 2,
            Self::TreeNode => 3,
            Self::GraphNode => 4,
            Self::Forward => 5,
            Self::Server => 6,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = PkiError;

    fn from_str(text: &str) -> Result<Self, PkiError> {
        let found = Self::ALL.into_iter().find(|role| role.name() == text);
        found.ok_or_else(|| PkiError::Role(text.chars().take(64).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_bytes_differ() {
        for (index, role) in Role::ALL.into_iter().enumerate() {
            assert_eq!(role.to_string().parse(), Ok(role));
            assert_eq!(usize::from(role.byte()), index + 1);
        }
        let error = "king".parse::<Role>().unwrap_err().to_string();
        let choices = "choose one of client, task-member, tree-node, graph-node, forward";
        assert!(error.contains("king") && error.ends_with(choices), "{error}");
    }
}
