//! IP addresses and ports as plain bytes, since this crate uses no sockets.

use std::fmt;

/// An IP address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// IPv4.
    V4([u8; 4]),
    /// IPv6.
    V6([u8; 16]),
}

impl Address {
    /// Whether this can be the address of a single host. False for the unspecified address, multicast
    /// addresses and, in IPv4, everything above them (RFC 9293 section 3.9.2.3).
    pub fn is_unicast(&self) -> bool {
        match self {
            Address::V4(bytes) => bytes[0] < 224 && *bytes != [0; 4],
            Address::V6(bytes) => bytes[0] != 0xff && *bytes != [0; 16],
        }
    }
}

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// The host's address.
    pub address: Address,
    /// The host's TCP port.
    pub port: u16,
}

/// Both ends of a connection. The endpoint finds a flow by this key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tuple {
    /// The peer.
    pub remote: Peer,
    /// This end.
    pub local: Peer,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Address::V4([a, b, c, d]) => write!(f, "{a}.{b}.{c}.{d}:{}", self.port),
            Address::V6(bytes) => {
                write!(f, "[")?;
                for (i, pair) in bytes.chunks_exact(2).enumerate() {
                    let colon = if i > 0 { ":" } else { "" };
                    write!(f, "{colon}{:x}", u16::from_be_bytes([pair[0], pair[1]]))?;
                }
                write!(f, "]:{}", self.port)
            }
        }
    }
}
