//! Errors of a lab, each with a kind, a cause and a hint.

use thiserror::Error;

/// Result of an operation on a lab.
pub type Result<T> = std::result::Result<T, Error>;

/// Kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The description of the network is invalid.
    Config,
    /// The system denies permission.
    Permission,
    /// The kernel lacks something that the lab needs.
    Unsupported,
    /// A name is already used.
    InUse,
    /// Any other system error.
    System,
}

/// An error of a lab. It displays as `operation: cause; hint`.
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

    /// What was being done.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// What went wrong.
    pub fn cause(&self) -> &str {
        &self.context
    }

    /// What a person can do about it, if it is known.
    pub fn advice(&self) -> Option<&'static str> {
        self.hint
    }

    /// Kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// A system error during `operation` on `what`, with a kind and hint that fit it.
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
