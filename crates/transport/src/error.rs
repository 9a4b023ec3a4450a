//! The errors of transports: kind, operation, context, hint, and whether a retry can help.

use std::borrow::Cow;

use thiserror::Error;

/// Result of a transport operation.
pub type Result<T> = std::result::Result<T, Error>;

/// The kinds of errors that a transport reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The address cannot be used as written, or does not resolve.
    Address,
    /// Another listener has the address.
    InUse,
    /// Nothing listens at the address, or the network does not reach it.
    Unreachable,
    /// The peer did not answer in time.
    Timeout,
    /// The link has ended: the peer closed it, or it broke.
    Closed,
    /// The peer sent bytes that do not follow the protocol.
    Corrupt,
    /// A certificate, key or token is not trusted.
    Security,
    /// The system denies permission.
    Permission,
    /// This build, machine or transport cannot do it.
    Unsupported,
    /// The send was cancelled.
    Cancelled,
    /// Any other system error.
    System,
}

impl ErrorKind {
    /// The kind's name, to branch on in other languages.
    pub const fn name(self) -> &'static str {
        match self {
            ErrorKind::Address => "address",
            ErrorKind::InUse => "inuse",
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::Timeout => "timeout",
            ErrorKind::Closed => "closed",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::Security => "security",
            ErrorKind::Permission => "permission",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::System => "system",
        }
    }

    /// Whether the same call may succeed later without a change.
    pub const fn may_retry(self) -> bool {
        matches!(self, ErrorKind::Unreachable | ErrorKind::Timeout | ErrorKind::Closed | ErrorKind::Corrupt)
    }
}

/// A transport's error.
#[derive(Debug, Clone, Error)]
pub struct Error {
    kind: ErrorKind,
    operation: &'static str,
    context: String,
    hint: Option<Cow<'static, str>>,
}

impl Error {
    /// An error of `kind` that happened during `operation`. `context` tells a person what went wrong.
    pub fn new(kind: ErrorKind, operation: &'static str, context: impl Into<String>) -> Self {
        Self { kind, operation, context: context.into(), hint: None }
    }

    /// The error of a choice that only builds with the cargo feature `baselines` have. `choice` is an option
    /// and its value.
    pub fn no_baselines(operation: &'static str, choice: &str) -> Self {
        let context = format!("{choice} is for comparison only, and this build has no baselines");
        Self::new(ErrorKind::Unsupported, operation, context)
            .hint("build with them in a checkout of the source: make setup BASELINES=1")
    }

    /// Adds a hint: what a person can do about the error. A command shows it in a line of its own, so the
    /// hint must name the object that it is about.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same error in another operation, of which the first was a part.
    #[must_use]
    pub fn during(self, operation: &'static str) -> Self {
        Self { operation, ..self }
    }

    /// Puts what the error is about, such as an address, before the cause.
    #[must_use]
    pub fn about(self, subject: impl std::fmt::Display) -> Self {
        Self { context: format!("{subject}: {}", self.context), ..self }
    }

    /// Kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
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
    pub fn advice(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The cause and the hint, to be part of another error, which names the operation itself.
    pub fn reason(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{}; {hint}", self.context),
            None => self.context.clone(),
        }
    }

    /// Makes an error from a system error. `context` says what it concerns, such as the address.
    pub fn io(operation: &'static str, context: impl std::fmt::Display, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let (kind, hint) = match error.kind() {
            Io::AddrInUse => (ErrorKind::InUse, Some("choose another port, or end the program that has it")),
            Io::AddrNotAvailable => (ErrorKind::Address, Some("listen on an address this machine has")),
            Io::ConnectionRefused => {
                (ErrorKind::Unreachable, Some("start the server first, or check the address"))
            }
            Io::NetworkUnreachable | Io::HostUnreachable => (ErrorKind::Unreachable, None),
            Io::TimedOut => (ErrorKind::Timeout, None),
            Io::PermissionDenied => {
                (ErrorKind::Permission, Some("use a port above 1023, or grant the permission"))
            }
            Io::UnexpectedEof | Io::ConnectionReset | Io::ConnectionAborted | Io::BrokenPipe => {
                (ErrorKind::Closed, None)
            }
            _ => (ErrorKind::System, None),
        };
        Self { kind, operation, context: format!("{context}: {error}"), hint: hint.map(Cow::Borrowed) }
    }

    /// An error of kind [`ErrorKind::Closed`]: the link has ended.
    pub fn closed(operation: &'static str, context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Closed, operation, context)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.operation, self.context)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl From<thalweg_wire::WireError> for Error {
    fn from(error: thalweg_wire::WireError) -> Self {
        Self::new(ErrorKind::Corrupt, "decode", error.to_string())
    }
}
