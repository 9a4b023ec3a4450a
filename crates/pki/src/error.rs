//! What can go wrong; each message says what to do.

use thiserror::Error;

/// Why a certificate, secret or token cannot be made or read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PkiError {
    /// The authority's certificate and key are not a pair of PEM files that fit.
    #[error("authority: {0}; give the certificate and key that `thalweg pki init` wrote, both of one run")]
    Authority(String),
    /// A certificate could not be made.
    #[error("certificate for {name:?}: {cause}; check the name, the hosts and the number of days")]
    Certificate {
        /// Whose.
        name: String,
        /// What was wrong.
        cause: String,
    },
    /// The system gave no random numbers.
    #[error("the system gave no random numbers; try again when it has started up")]
    Random,
    /// A secret that is not one.
    #[error("secret: {0}; it is 64 hexadecimal digits, as `thalweg pki` writes them")]
    Secret(String),
    /// A token, or a secret that all share, that is not one.
    #[error("token: {0}; give the one word all parties share, or what `thalweg pki issue` wrote")]
    Token(String),
    /// A public key of tokens that is not one.
    #[error("issuer of tokens: {0}; it is what `thalweg pki init` wrote into issuer.pub")]
    Issuer(String),
    /// A role that there is not.
    #[error("there is no role {0:?}; choose one of {choices}", choices = crate::Role::choices())]
    Role(String),
}
