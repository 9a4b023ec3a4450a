//! The errors of this crate. Each message says what to do.

use thiserror::Error;

/// The reason why a certificate, secret or token cannot be made or read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PkiError {
    /// The authority's certificate and key do not load, or do not belong together.
    #[error("authority: {0}; give the certificate and key that `thalweg pki init` wrote, both of one run")]
    Authority(String),
    /// A certificate could not be made.
    #[error("certificate for {name:?}: {cause}; check the name, the hosts and the number of days")]
    Certificate {
        /// Name in the certificate.
        name: String,
        /// The reason.
        cause: String,
    },
    /// The system gave no random numbers.
    #[error("the system gave no random numbers; try again when it has started up")]
    Random,
    /// The text is not a secret.
    #[error("secret: {0}; it is 64 hexadecimal digits, as `thalweg pki` writes them")]
    Secret(String),
    /// The text is neither a token nor a shared secret.
    #[error("token: {0}; give the one word all parties share, or what `thalweg pki issue` wrote")]
    Token(String),
    /// The text is not an issuer's public key.
    #[error("issuer of tokens: {0}; it is what `thalweg pki init` wrote into issuer.pub")]
    Issuer(String),
    /// There is no such role.
    #[error("there is no role {0:?}; choose one of {choices}", choices = crate::Role::choices())]
    Role(String),
}
