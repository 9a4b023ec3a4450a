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
    /// A token that is not one.
    #[error("token: {0}; give the one word all parties share, or 64 hexadecimal digits")]
    Token(String),
    /// A token file that is not one.
    #[error("token file, line {line}: {cause}; ask the operator of the server for a new one")]
    TokenFile {
        /// Line, from 1.
        line: usize,
        /// What was wrong.
        cause: String,
    },
    /// A name that a party cannot have.
    #[error("name {0:?} has not 1 to 128 bytes of printable characters; choose another")]
    Name(String),
}
