//! The runtime's error: a kind to branch on, the operation, the cause, and a hint what to do about it.

use std::fmt;

use thalweg_proto::Failure;

/// An error of the runtime. It displays as `operation: cause; hint`.
#[derive(Debug, Clone)]
pub struct Error {
    kind: String,
    operation: String,
    cause: String,
    hint: Option<String>,
    may_retry: bool,
}

impl Error {
    /// An error of this kind, which occurred in `operation`. The same call may succeed later if the kind is
    /// `timeout`.
    pub fn new(kind: &str, operation: &str, cause: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            operation: operation.into(),
            cause: cause.into(),
            hint: None,
            may_retry: kind == "timeout",
        }
    }

    /// An error of kind `refused`: the peer did not let this party in, or the part in the job failed.
    pub fn failed(operation: &str, why: Failure) -> Self {
        Self { hint: why.hint, ..Self::new("refused", operation, why.cause) }
    }

    /// Adds a hint: what a person can do about the error. It must name the object that it is about, because
    /// a command shows it in a line of its own.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The kind: a transport's error kind in lower case, or a kind of the runtime such as `options`, `round`,
    /// `task`, `refused`, `interrupted`, `memory`.
    pub fn kind(&self) -> &str {
        &self.kind
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
            kind: error.kind().name().into(),
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
        let said = Self::new("memory", "arena", error.cause());
        Self { hint: error.hint().map(str::to_owned), ..said }
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::new("options", "read options", error.to_string())
    }
}
