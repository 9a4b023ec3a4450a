//! The runtime's error: a kind to branch on, the operation, the cause, and a hint what to do about it.

use std::fmt;

use thalweg_proto::Failure;
use thalweg_transport::ErrorKind;

/// The kinds of the core's errors: those of a transport, of a lab, and of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The address cannot be used as written, or does not resolve.
    Address,
    /// The send was cancelled.
    Cancelled,
    /// The link or the object has been closed, or the link broke.
    Closed,
    /// A lab's description cannot be used.
    Config,
    /// The peer sent bytes that do not follow the protocol.
    Corrupt,
    /// The object was made in another process, of which this one is a fork.
    Forked,
    /// A signal ended the call.
    Interrupted,
    /// Another listener has the address, or another lab the name.
    InUse,
    /// Names, types or shapes of tensors cannot be used.
    Layout,
    /// No memory is left, or memory was asked for that is in use.
    Memory,
    /// An option is unknown, of the wrong type, out of range, or in conflict with another.
    Options,
    /// The system denies permission.
    Permission,
    /// The peer did not let this party in, or ended its part in the job.
    Refused,
    /// The server did not take the update.
    Rejected,
    /// A round cannot end, or the call does not fit the round.
    Round,
    /// A certificate, key or token is not trusted.
    Security,
    /// Any other error of the system.
    System,
    /// The call does not fit the task, or the task has failed.
    Task,
    /// The peer did not answer in time.
    Timeout,
    /// Nothing listens at the address, or the network does not reach it.
    Unreachable,
    /// This build, machine or transport cannot do it.
    Unsupported,
}

impl Kind {
    /// All kinds, in the order of their names.
    pub const ALL: [Self; 21] = [
        Self::Address,
        Self::Cancelled,
        Self::Closed,
        Self::Config,
        Self::Corrupt,
        Self::Forked,
        Self::Interrupted,
        Self::InUse,
        Self::Layout,
        Self::Memory,
        Self::Options,
        Self::Permission,
        Self::Refused,
        Self::Rejected,
        Self::Round,
        Self::Security,
        Self::System,
        Self::Task,
        Self::Timeout,
        Self::Unreachable,
        Self::Unsupported,
    ];

    /// The kind's name, to branch on in other languages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Cancelled => "cancelled",
            Self::Closed => "closed",
            Self::Config => "config",
            Self::Corrupt => "corrupt",
            Self::Forked => "forked",
            Self::Interrupted => "interrupted",
            Self::InUse => "inuse",
            Self::Layout => "layout",
            Self::Memory => "memory",
            Self::Options => "options",
            Self::Permission => "permission",
            Self::Refused => "refused",
            Self::Rejected => "rejected",
            Self::Round => "round",
            Self::Security => "security",
            Self::System => "system",
            Self::Task => "task",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Unsupported => "unsupported",
        }
    }
}

impl From<ErrorKind> for Kind {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Address => Self::Address,
            ErrorKind::InUse => Self::InUse,
            ErrorKind::Unreachable => Self::Unreachable,
            ErrorKind::Timeout => Self::Timeout,
            ErrorKind::Closed => Self::Closed,
            ErrorKind::Corrupt => Self::Corrupt,
            ErrorKind::Security => Self::Security,
            ErrorKind::Permission => Self::Permission,
            ErrorKind::Unsupported => Self::Unsupported,
            ErrorKind::Cancelled => Self::Cancelled,
            ErrorKind::System => Self::System,
        }
    }
}

/// An error of the runtime. It displays as `operation: cause; hint`.
#[derive(Debug, Clone)]
pub struct Error {
    kind: Kind,
    operation: String,
    cause: String,
    hint: Option<String>,
    may_retry: bool,
}

impl Error {
    /// An error of this kind, which occurred in `operation`. The same call may succeed later if the kind is
    /// [`Kind::Timeout`].
    pub fn new(kind: Kind, operation: &str, cause: impl Into<String>) -> Self {
        Self {
            kind,
            operation: operation.into(),
            cause: cause.into(),
            hint: None,
            may_retry: kind == Kind::Timeout,
        }
    }

    /// An error of [`Kind::Refused`]: the peer did not let this party in, or the part in the job failed.
    pub fn failed(operation: &str, why: Failure) -> Self {
        Self { hint: why.hint, ..Self::new(Kind::Refused, operation, why.cause) }
    }

    /// Adds a hint: what a person can do about the error. It must name the object that it is about, because
    /// a command shows it in a line of its own.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The kind, to branch on.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The operation that failed; empty if the caller's own call says it.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// What went wrong.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// What a person can do about it, if more is known than the kind says.
    pub fn advice(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Whether the same call may succeed later without a change.
    pub fn may_retry(&self) -> bool {
        self.may_retry
    }

    /// The operation and the cause, as one text.
    fn told(&self) -> String {
        let (operation, cause) = (&self.operation, &self.cause);
        if operation.is_empty() {
            return cause.clone();
        }
        format!("{operation}: {cause}")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told())?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl std::error::Error for Error {}

impl From<thalweg_transport::Error> for Error {
    fn from(error: thalweg_transport::Error) -> Self {
        Self {
            kind: error.kind().into(),
            operation: error.operation().into(),
            cause: error.cause().into(),
            hint: error.advice().map(str::to_owned),
            may_retry: error.kind().may_retry(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { cause: error.told(), hint: error.hint }
    }
}

impl From<thalweg_arena::ArenaError> for Error {
    fn from(error: thalweg_arena::ArenaError) -> Self {
        let said = Self::new(Kind::Memory, "arena", error.cause());
        Self { hint: error.hint().map(str::to_owned), ..said }
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::new(Kind::Options, "read options", error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_own_name_and_stands_in_the_order_of_names() {
        let names = Kind::ALL.map(Kind::name);
        assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "{names:?}");
        // A kind that is added to the type and not to `ALL` has a larger number than the last of `ALL`.
        assert_eq!(Kind::Unsupported as usize + 1, Kind::ALL.len());
    }
}
