//! The options of a transport. Each has a key in a plan.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thalweg_wire::limits;

use crate::{AdmissionQueue, Settings};

/// Options of a listener or a connection. A transport refuses those that it cannot honour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Congestion control algorithm, such as `cubic`; `None` leaves the system's.
    pub congestion: Option<String>,
    /// Parallel connections of one link, 1 to 16.
    pub streams: u8,
    /// Kernel send buffer in bytes; `None` leaves the system's tuning.
    pub send_buffer: Option<u32>,
    /// Kernel receive buffer in bytes; `None` leaves the system's tuning.
    pub receive_buffer: Option<u32>,
    /// Certificates and keys for TLS. `None` sends without encryption.
    pub tls: Option<Tls>,
    /// User and password for a broker.
    pub login: Option<Login>,
    /// Settings that only this transport has. [`crate::Transport::settings`] declares them.
    pub own: Settings,
    /// How a layer above encrypts chunks before the transport gets them. Only layers set this.
    #[serde(skip)]
    pub sealed: Option<Sealed>,
    /// Listener: the queue in which peers wait until [`crate::Link::admit`] says that they have proved who
    /// they are. `None` trusts every peer from its first byte on.
    #[serde(skip)]
    pub admission_queue: Option<AdmissionQueue>,
    /// Maximum time of one attempt to connect, in milliseconds, handshake included.
    pub connect_timeout_ms: u64,
}

impl Options {
    /// Maximum time of one attempt to connect, handshake included.
    pub fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            congestion: None,
            streams: 1,
            send_buffer: None,
            receive_buffer: None,
            tls: None,
            login: None,
            own: Settings::default(),
            sealed: None,
            admission_queue: None,
            connect_timeout_ms: limits::CONNECT.as_millis() as u64,
        }
    }
}

/// Says that chunks are encrypted and authenticated, together with the values in their headers, in records
/// that are opened one by one. The keys follow from [`crate::Peer::binding`]. So such chunks may be sent
/// without TLS, and parts of them may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// Bytes at the start of each chunk's payload. If they are lost, no record of the chunk can be opened.
    pub head: u32,
    /// Bytes of the update in each record after the head. The last record may have less.
    pub record: u32,
    /// Bytes of a full record when sealed. A record with fewer bytes of the update is shorter by the
    /// difference.
    pub stride: u32,
}

/// The certificates that one end trusts, and its own. All are in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Certificates of the trusted authorities.
    pub authority: String,
    /// This end's own certificate and key. A server always has them, a client for mutual TLS.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// Server: whether a client must show a certificate that the authority issued.
    #[serde(default)]
    pub require_client: bool,
    /// Client: the name that the server's certificate must contain. `None` takes the host of the address.
    #[serde(default)]
    pub server_name: Option<String>,
}

/// A certificate and its key, in PEM.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The end's certificate, then the intermediate certificates up to the authority.
    pub certificate: String,
    /// The private key of the end's certificate.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity(..)") // a key never gets into a log
    }
}

/// User and password for a broker.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The user's name.
    pub user: String,
    /// The user's password.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Login({:?}, ..)", self.user) // a password never gets into a log
    }
}
