//! The runtime's error in the form that Python gets: a kind for the caller, and a text with the cause and
//! what to do.

/// An error of the runtime.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation}: {context}")]
pub struct Error {
    kind: String,
    operation: String,
    context: String,
}

impl Error {
    /// An error of this kind, which occurred in `operation`.
    pub fn new(kind: &str, operation: &str, context: impl Into<String>) -> Self {
        Self { kind: kind.into(), operation: operation.into(), context: context.into() }
    }

    /// The kind: a transport's error kind in lower case, or a kind of the runtime such as `options`, `round`,
    /// `task`, `refused`, `interrupted`, `memory`.
    pub fn kind(&self) -> &str {
        &self.kind
    }
}

impl From<thalweg_transport::Error> for Error {
    fn from(error: thalweg_transport::Error) -> Self {
        let text = error.to_string();
        let (operation, context) = text.split_once(": ").unwrap_or(("transport", &text));
        Self::new(&format!("{:?}", error.kind()).to_lowercase(), operation, context)
    }
}

impl From<thalweg_arena::ArenaError> for Error {
    fn from(error: thalweg_arena::ArenaError) -> Self {
        Self::new("memory", "arena", error.to_string())
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::new("options", "read options", error.to_string())
    }
}
