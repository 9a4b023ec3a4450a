//! Why a party's part in a job failed.

use std::fmt;

use thalweg_wire::text::{plain, MAX_REASON};

use crate::Kind;

/// Why a party's part in a job failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The kind of the error that it is reported as.
    pub kind: Kind,
    /// What went wrong. It may quote the peer.
    pub cause: String,
    /// What to do about it, if this end knows. It never comes from the peer.
    pub hint: Option<String>,
    /// Whether the same may succeed later without a change.
    pub may_retry: bool,
}

impl Failure {
    /// A refusal with a hint of this end.
    pub fn hinted(cause: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..Self::from(cause.into()) }
    }

    /// A failure of this kind after which a retry may succeed.
    pub(crate) fn transient(kind: Kind, cause: impl Into<String>) -> Self {
        Self { kind, may_retry: true, ..Self::from(cause.into()) }
    }

    /// The failure as text that is safe to show. A transport's error may quote a peer or a broker.
    pub(crate) fn plain(&self) -> Self {
        let clean = |text: &str| plain(text, MAX_REASON);
        Self { cause: clean(&self.cause), hint: self.hint.as_deref().map(clean), ..*self }
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

/// A refusal.
impl From<String> for Failure {
    fn from(cause: String) -> Self {
        Self { kind: Kind::Refused, cause, hint: None, may_retry: false }
    }
}
