//! A small certificate authority and job tokens: what a job needs so that only its own parties get in.
//!
//! * [`Authority`] makes the certificates of a server and its clients for (mutual) TLS, and a key for CURVE beside them.
//! * From a [`Secret`] follows a [`Token`] for each client's name ([`token_for`]); the server keeps only the secret. A client shows
//!   a [`proof`] of its token, tied to both ends' nonces and to the encrypted link, never the token itself.
//! * [`TokenFile`] is what a client is handed: name, token, and the authority to trust.
//!
//! ```
//! use thalweg_pki::{proof, token_for, verify, Secret, TokenFile, Transcript};
//!
//! let secret = Secret::generate()?; // at the server
//! let file = TokenFile::new("clinic-3", token_for(&secret, "clinic-3"), "")?;
//! let file = TokenFile::parse(&file.to_string())?; // at the client
//! let transcript =
//!     Transcript { server_nonce: &[1; 32], client_nonce: &[2; 32], name: "clinic-3", binding: None };
//! let shown = proof(&file.token, &transcript);
//! assert!(verify(&token_for(&secret, "clinic-3"), &transcript, &shown)); // at the server
//! # Ok::<(), thalweg_pki::PkiError>(())
//! ```
#![forbid(unsafe_code)]

mod authority;
mod curve;
mod error;
mod hex;
mod token;
mod token_file;

pub use authority::{Authority, Identity, MAX_DAYS};
pub use error::PkiError;
pub use token::{proof, token_for, verify, Secret, Token, Transcript, MAX_WORD};
pub use token_file::{TokenFile, MAX_FILE, MAX_NAME};
