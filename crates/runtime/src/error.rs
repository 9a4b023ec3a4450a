//! The runtime's error: a kind to branch on, the operation, the cause, and a hint what to do about it.

use std::fmt;

pub use thalweg_proto::Kind;

use thalweg_proto::Failure;
use thalweg_transport::ErrorKind;

/// The kind of a transport's error.
fn kind_of(kind: ErrorKind) -> Kind {
    match kind {
        ErrorKind::Address => Kind::Address,
        ErrorKind::InUse => Kind::InUse,
        ErrorKind::Unreachable => Kind::Unreachable,
        ErrorKind::Timeout => Kind::Timeout,
        ErrorKind::Closed => Kind::Closed,
        ErrorKind::Corrupt => Kind::Corrupt,
        ErrorKind::Security => Kind::Security,
        ErrorKind::Permission => Kind::Permission,
        ErrorKind::Unsupported => Kind::Unsupported,
        ErrorKind::Cancelled => Kind::Cancelled,
        ErrorKind::System => Kind::System,
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

    /// The error of a party whose part in the job has failed.
    pub fn failed(operation: &str, why: Failure) -> Self {
        let Failure { kind, cause, hint, may_retry } = why;
        Self { kind, operation: operation.into(), cause, hint, may_retry }
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
    fn operation_and_cause(&self) -> String {
        let (operation, cause) = (&self.operation, &self.cause);
        if operation.is_empty() {
            return cause.clone();
        }
        format!("{operation}: {cause}")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operation_and_cause())?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl std::error::Error for Error {}

impl From<thalweg_transport::Error> for Error {
    fn from(error: thalweg_transport::Error) -> Self {
        Self {
            kind: kind_of(error.kind()),
            operation: error.operation().into(),
            cause: error.cause().into(),
            hint: error.advice().map(str::to_owned),
            may_retry: error.kind().may_retry(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (kind, cause, may_retry) = (error.kind, error.operation_and_cause(), error.may_retry);
        Self { kind, cause, hint: error.hint, may_retry }
    }
}

impl From<thalweg_arena::ArenaError> for Error {
    fn from(error: thalweg_arena::ArenaError) -> Self {
        let memory = Self::new(Kind::Memory, "arena", error.cause());
        Self { hint: error.hint().map(str::to_owned), ..memory }
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::new(Kind::Options, "read options", error.to_string())
    }
}
