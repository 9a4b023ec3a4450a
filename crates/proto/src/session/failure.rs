//! Why a party's part in a job failed.

use std::fmt;

use thalweg_wire::text::{plain, MAX_REASON};

/// Why a party's part in a job failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong. It may quote the peer.
    pub cause: String,
    /// What to do about it, if this end knows. It never comes from the peer.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure of which this end knows what to do about it.
    pub fn hinted(cause: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { cause: cause.into(), hint: Some(hint.into()) }
    }

    /// The failure as text that is safe to show. A transport's error may quote a peer or a broker.
    pub(crate) fn plain(&self) -> Self {
        let clean = |text: &str| plain(text, MAX_REASON);
        Self { cause: clean(&self.cause), hint: self.hint.as_deref().map(clean) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl From<&str> for Failure {
    fn from(cause: &str) -> Self {
        cause.to_owned().into()
    }
}

impl From<String> for Failure {
    fn from(cause: String) -> Self {
        Self { cause, hint: None }
    }
}
