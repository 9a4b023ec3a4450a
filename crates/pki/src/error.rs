//! The errors of this crate. Each has a cause and a hint.

use std::fmt;

/// The reason why a certificate, secret or token cannot be made or read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PkiError {
    /// The authority's certificate and key do not load, or do not belong together.
    Authority(String),
    /// A certificate could not be made.
    Certificate {
        /// Name in the certificate.
        name: String,
        /// The reason.
        cause: String,
    },
    /// The system gave no random numbers.
    Random,
    /// The text is not a secret.
    Secret(String),
    /// The text is neither a token nor a shared secret.
    Token(String),
    /// The text is not an issuer's public key.
    Issuer(String),
    /// The text is not a certificate.
    Unreadable(String),
    /// There is no such role.
    Role(String),
}

impl PkiError {
    /// What went wrong.
    pub fn cause(&self) -> String {
        match self {
            Self::Authority(why) => format!("authority: {why}"),
            Self::Certificate { name, cause } => format!("certificate for {name:?}: {cause}"),
            Self::Random => "the system gave no random numbers".into(),
            Self::Secret(why) => format!("secret: {why}"),
            Self::Token(why) => format!("token: {why}"),
            Self::Issuer(why) => format!("issuer of tokens: {why}"),
            Self::Unreadable(why) => format!("no certificate: {why}"),
            Self::Role(name) => format!("there is no role {name:?}"),
        }
    }

    /// What a person can do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Authority(_) => {
                "give the certificate and key that `thalweg pki init` wrote, both of one run".into()
            }
            Self::Certificate { .. } => "check the name, the hosts and the number of days".into(),
            Self::Random => "try again when it has started up".into(),
            Self::Secret(_) => "it is 64 hexadecimal digits, as `thalweg pki` writes them".into(),
            Self::Token(_) => "give the one word all parties share, or what `thalweg pki issue` wrote".into(),
            Self::Issuer(_) => "it is what `thalweg pki init` wrote into issuer.pub".into(),
            Self::Unreadable(_) => "give a certificate in PEM, as `thalweg pki` writes them".into(),
            Self::Role(_) => format!("choose one of {}", crate::Role::choices()),
        }
    }
}

impl fmt::Display for PkiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.cause(), self.hint())
    }
}

impl std::error::Error for PkiError {}
