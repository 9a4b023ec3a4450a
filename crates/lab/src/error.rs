//! What can go wrong in a lab.

use thiserror::Error;

/// Result of a lab's operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Kinds of errors, to branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The network is impossible as described.
    Config,
    /// The system denies it.
    Permission,
    /// This machine has not got what it takes.
    Unsupported,
    /// A name is taken.
    InUse,
    /// Any other system error.
    System,
}

impl ErrorKind {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Config => "config",
            ErrorKind::Permission => "permission",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::InUse => "in use",
            ErrorKind::System => "system",
        }
    }
}

/// A lab's error: `operation: cause; hint`.
#[derive(Debug, Clone, Error)]
#[error("{operation}: {context}{}", hint.map(|m| format!("; {m}")).unwrap_or_default())]
pub struct Error {
    kind: ErrorKind,
    operation: &'static str,
    context: String,
    hint: Option<&'static str>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, operation: &'static str, context: impl Into<String>) -> Self {
        Self { kind, operation, context: context.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// A system error while doing `operation` to `what`.
    pub(crate) fn io(operation: &'static str, what: &str, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let context = format!("{what}: {error}");
        match error.kind() {
            Io::PermissionDenied => Self::new(ErrorKind::Permission, operation, context)
                .hint("run it as root, or take emulator = \"message\", which needs no rights"),
            Io::NotFound => Self::new(ErrorKind::Unsupported, operation, context)
                .hint("take a kernel that has it, or emulator = \"message\""),
            Io::ResourceBusy => Self::new(ErrorKind::InUse, operation, context).hint("choose another name"),
            _ => Self::new(ErrorKind::System, operation, context),
        }
    }
}
