//! Who the peer is, and the error messages for connections that fail.

use quinn::{Connection, ConnectionError, TransportErrorCode};
use rustls::pki_types::CertificateDer;
use thalweg_sockets::tls;
use thalweg_transport::{Error, ErrorKind, Options, Peer, Result};

/// Codes of errors that are alerts of TLS (RFC 9001, section 4.8).
const ALERTS: std::ops::Range<u64> = 0x100..0x200;

/// The identity that the other end has shown, and the secret shared with it.
pub(crate) fn peer(
    operation: &'static str,
    address: String,
    connection: &Connection,
    options: &Options,
) -> Result<Peer> {
    if options.tls.is_none() {
        return Ok(Peer { address, ..Peer::default() });
    }
    let shown =
        connection.peer_identity().and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok());
    let (certified, role) = shown.and_then(|chain| chain.first().map(|c| tls::names(c))).unwrap_or_default();
    let mut binding = [0; 32];
    connection.export_keying_material(&mut binding, tls::BINDING, b"").map_err(|_| {
        Error::new(
            ErrorKind::Security,
            operation,
            format!("{address}: the handshake yields no shared secret"),
        )
    })?;
    Ok(Peer { address, certified, role, binding: Some(binding) })
}

/// The error message for the end of a connection to `who`.
pub(crate) fn explain(operation: &'static str, who: &str, error: &ConnectionError) -> Error {
    match error {
        ConnectionError::ApplicationClosed(_) => {
            Error::closed(operation, format!("{who} has closed the link"))
        }
        ConnectionError::LocallyClosed => Error::closed(operation, format!("{who}: the link has ended")),
        ConnectionError::Reset => {
            Error::closed(operation, format!("{who} does not know the link: it has restarted"))
        }
        ConnectionError::TimedOut => {
            Error::new(ErrorKind::Timeout, operation, format!("{who} did not answer in time"))
        }
        ConnectionError::TransportError(error) => match alert(error.code) {
            Some(alert) => tls::by_alert(operation, who, alert, Some(&error.reason)),
            None => Error::new(ErrorKind::Corrupt, operation, format!("{who}: {error}")),
        },
        ConnectionError::ConnectionClosed(close) => match alert(close.error_code) {
            Some(alert) => tls::by_alert(operation, who, alert, None),
            None => Error::closed(operation, format!("{who} has ended the link: {close}")),
        },
        ConnectionError::VersionMismatch | ConnectionError::CidsExhausted => {
            Error::new(ErrorKind::Unsupported, operation, format!("{who}: {error}"))
                .hint("use the same release at both ends")
        }
    }
}

fn alert(code: TransportErrorCode) -> Option<u8> {
    let code = u64::from(code);
    ALERTS.contains(&code).then_some(code as u8)
}
