//! What can be chosen about a transport; each has its place in a plan.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{AdmissionQueue, Settings};

/// Choices for a listener or a connection. Those a transport cannot honour it refuses, by capability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Congestion control such as `cubic`; `None` leaves the system's.
    pub congestion: Option<String>,
    /// Parallel connections of one link, 1 to 16.
    pub streams: u8,
    /// Kernel send buffer in bytes; `None` leaves the system's tuning.
    pub send_buffer: Option<u32>,
    /// Kernel receive buffer in bytes; `None` leaves the system's tuning.
    pub receive_buffer: Option<u32>,
    /// Encryption; `None` sends in the clear.
    pub tls: Option<Tls>,
    /// Who one is to a broker.
    pub login: Option<Login>,
    /// What only this transport can be told, as [`crate::Transport::settings`] declares it.
    pub own: Settings,
    /// What a layer above makes of chunks before the transport gets them; only layers say so.
    #[serde(skip)]
    pub sealed: Option<Sealed>,
    /// Listener: where peers wait until [`crate::Link::admit`] says that they have proved who they are. `None` trusts
    /// whoever connects from the first byte on.
    #[serde(skip)]
    pub admission_queue: Option<AdmissionQueue>,
    /// How long one attempt to connect and shake hands may take, in milliseconds.
    pub connect_timeout_ms: u64,
}

impl Options {
    /// How long one attempt to connect and shake hands may take.
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
            connect_timeout_ms: 10_000,
        }
    }
}

/// Chunks are encrypted and authenticated, with what their headers say, in records that are opened one by one: by keys
/// that follow from [`crate::Peer::binding`]. So they may travel in the clear, and parts of them may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// Bytes at the head of each chunk's payload without which nothing of it can be opened.
    pub head: u32,
    /// Bytes of the update in each record behind it; the last may have less.
    pub record: u32,
    /// Bytes of such a record when sealed; one with less is shorter by as much.
    pub stride: u32,
}

/// Who is trusted, and who one is. All in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Certificates of the authorities trusted.
    pub authority: String,
    /// One's own certificate and key: the server's always, a client's for mutual TLS.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// Server: whether a client must show a certificate of the authority.
    #[serde(default)]
    pub require_client: bool,
    /// Client: the name the server's certificate must carry; `None` takes the host of the address.
    #[serde(default)]
    pub server_name: Option<String>,
}

/// A certificate and its key, in PEM.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The certificate, and those between it and the authority.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity(..)") // a key never gets into a log
    }
}

/// A user of a broker.
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
