//! The ways on which a link's bytes can go, for transports that have several.

use std::time::Duration;

/// What carries bytes between two machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// UDP datagrams.
    Udp,
    /// A TCP connection.
    Tcp,
}

impl Carrier {
    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

/// What carries a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carriers {
    /// What carries control messages.
    pub control: Carrier,
    /// What carries chunks.
    pub chunks: Carrier,
}

/// Which ways to a listener pass. Each has the time until the first answer, or why there was none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ways {
    /// By UDP, to the listener's own port.
    pub udp: Result<Duration, String>,
    /// By TCP, to the same port.
    pub tcp: Result<Duration, String>,
}
