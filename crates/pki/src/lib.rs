//! A small certificate authority and job tokens. With them, only a job's own parties are admitted.
//!
//! - [`Authority`] makes the certificates of a server and its clients for (mutual) TLS, with a CURVE key
//!   beside them.
//! - A [`Secret`] issues a [`Token`] for a [`Role`] and a name. The token's holder shows a proof, never the
//!   token itself. The proof is bound to the nonces of both ends, to the job and to the encrypted link. With
//!   the [`Issuer`], a server can check a proof but cannot make one.
//!
//! ```
//! use thalweg_pki::{Role, Secret, Transcript};
//!
//! let secret = Secret::generate()?; // the operator's
//! let token = secret.issue(Role::Client, "clinic-3")?; // for the client
//! let transcript = Transcript {
//!     server_nonce: &[1; 32], client_nonce: &[2; 32], job: 9, name: "clinic-3", binding: None
//! };
//! let shown = token.prove(Role::Client, &transcript);
//! assert!(secret.issuer().check(Role::Client, &transcript, &shown).is_ok()); // at the server
//! assert!(secret.issuer().check(Role::TreeNode, &transcript, &shown).is_err());
//! # Ok::<(), thalweg_pki::PkiError>(())
//! ```
#![forbid(unsafe_code)]

mod authority;
mod curve;
mod described;
mod error;
mod hex;
mod role;
mod token;

pub use authority::{Authority, Identity, MAX_DAYS};
pub use described::Described;
pub use error::PkiError;
pub use role::Role;
pub use token::{Issuer, Proof, Secret, Token, Transcript, Unproven, MAX_WORD};
