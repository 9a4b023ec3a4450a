//! Reads IP packets with a TCP segment in them, or superpackets of many segments (TSO).
//!
//! The code checks every length before it uses it. It drops fragments: a TCP socket with path MTU discovery
//! sends none.

use std::ops::Range;

use super::checksum::{fold, pseudo, sum};
use super::options::Options;
use super::{Address, Peer, Tuple};

pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;
pub(super) const ECE: u8 = 0x40;
pub(super) const CWR: u8 = 0x80;
const TCP: u8 = 6;
/// Offset of the checksum in the TCP header.
pub(super) const CHECKSUM: u16 = 16;
/// Maximum number of IPv6 extension headers that are skipped. A packet with more is dropped.
const EXTENSIONS: usize = 4;

/// The data about a packet that the device and we exchange (virtio 1.2 section 5.1.6, `virtio_net_hdr`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offload {
    /// State of the TCP checksum.
    pub checksum: Checksum,
    /// Payload bytes of each segment but the last; 0 for a packet that is one segment.
    pub segment: u16,
}

/// The state of a packet's TCP checksum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The checksum is complete, and still to be verified.
    #[default]
    Complete,
    /// The checksum is complete, and the device has verified it (`DATA_VALID`).
    Verified,
    /// The checksum field holds only the sum of the pseudo-header (`NEEDS_CSUM`). The packet never left this
    /// machine.
    Partial,
}

impl Offload {
    /// Reads the ten bytes that a TUN device with `IFF_VNET_HDR` puts in front of a packet, in native byte
    /// order.
    pub fn read(vnet: &[u8; 10]) -> Self {
        let checksum = match vnet[0] & 3 {
            0 => Checksum::Complete,
            2 => Checksum::Verified,
            _ => Checksum::Partial,
        };
        let segment = if vnet[1] == 0 { 0 } else { u16::from_ne_bytes([vnet[4], vnet[5]]) };
        Self { checksum, segment }
    }

    /// Writes these ten bytes for a packet to the device: a TCP segment or superpacket without IP extension
    /// headers.
    pub fn write(self, packet: &[u8]) -> [u8; 10] {
        let mut vnet = [0; 10];
        if self.checksum != Checksum::Partial {
            return vnet;
        }
        let old = packet.first().is_some_and(|byte| byte >> 4 == 4);
        let ip: u16 = if old { 20 } else { 40 };
        let tcp = packet.get(usize::from(ip) + 12).map_or(20, |byte| u16::from(byte >> 4) * 4);
        let mut put = |at: usize, value: u16| vnet[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        if self.segment > 0 {
            put(2, ip + tcp);
            put(4, self.segment);
        }
        put(6, ip);
        put(8, CHECKSUM);
        // `NEEDS_CSUM`; `GSO_TCPV4` or `GSO_TCPV6`.
        vnet[0] = 1;
        vnet[1] = u8::from(self.segment > 0) * if old { 1 } else { 4 };
        vnet
    }
}

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Senseless {
    /// The packet is not TCP over IP, or is cut short.
    Form,
    /// A checksum is wrong.
    Checksum,
    /// A fragment.
    Fragment,
}

/// A TCP segment.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub tuple: Tuple,
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    pub window: u16,
    pub options: Options,
    /// Position of the payload in the packet.
    pub payload: Range<usize>,
    /// Number of segments on the network; more than one for a superpacket.
    pub segments: u32,
    /// Whether the packet has a congestion mark (CE, RFC 3168).
    pub ce: bool,
}

impl Segment {
    pub fn read(packet: &[u8], offload: Offload) -> Result<Self, Senseless> {
        let ip = Ip::read(packet, offload)?;
        let bytes = &packet[ip.tcp..ip.end];
        let header = bytes.get(..20).ok_or(Senseless::Form)?;
        let length = usize::from(header[12] >> 4) * 4;
        let options = bytes.get(20..length).ok_or(Senseless::Form)?;
        let whole = |sum| matches!(fold(sum), 0 | 0xffff);
        if offload.checksum == Checksum::Complete
            && !whole(pseudo(&ip.from, &ip.to, bytes.len()) + sum(bytes))
        {
            return Err(Senseless::Checksum);
        }
        let number =
            |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let remote = Peer { address: ip.from, port: port(0) };
        let local = Peer { address: ip.to, port: port(2) };
        if remote == local || remote.port == 0 || local.port == 0 {
            return Err(Senseless::Form);
        }
        let payload = ip.tcp + length..ip.end;
        let segments = match offload.segment {
            0 => 1,
            each => payload.len().div_ceil(usize::from(each)).max(1) as u32,
        };
        Ok(Self {
            tuple: Tuple { remote, local },
            sequence: number(4),
            acknowledgement: number(8),
            flags: header[13],
            window: port(14),
            options: Options::read(options),
            payload,
            segments,
            ce: ip.ce,
        })
    }

    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Number of bytes in sequence space: payload, SYN and FIN (RFC 9293 section 3.4).
    pub fn span(&self) -> u32 {
        let flags = u32::from(self.has(SYN)) + u32::from(self.has(FIN));
        self.payload.len() as u32 + flags
    }
}

struct Ip {
    from: Address,
    to: Address,
    tcp: usize,
    end: usize,
    ce: bool,
}

impl Ip {
    fn read(packet: &[u8], offload: Offload) -> Result<Self, Senseless> {
        let ip = match packet.first().map(|byte| byte >> 4) {
            Some(4) => Self::v4(packet, offload)?,
            Some(6) => Self::v6(packet, offload)?,
            _ => return Err(Senseless::Form),
        };
        let sane = ip.from.is_unicast() && ip.to.is_unicast() && ip.tcp <= ip.end && ip.end <= packet.len();
        sane.then_some(ip).ok_or(Senseless::Form)
    }

    fn v4(packet: &[u8], offload: Offload) -> Result<Self, Senseless> {
        let fixed = packet.get(..20).ok_or(Senseless::Form)?;
        let tcp = usize::from(fixed[0] & 15) * 4;
        let header = packet.get(..tcp.max(20)).ok_or(Senseless::Form)?;
        if tcp < 20 || fixed[9] != TCP {
            return Err(Senseless::Form);
        }
        if u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0 {
            return Err(Senseless::Fragment);
        }
        // Verify the IP checksum. A packet of the local kernel may lack it, but only if its TCP checksum is
        // missing too.
        if offload.checksum == Checksum::Complete && fold(sum(header)) != 0xffff {
            return Err(Senseless::Checksum);
        }
        let address = |at: usize| Address::V4([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let end = length(usize::from(u16::from_be_bytes([fixed[2], fixed[3]])), packet.len(), offload);
        Ok(Self { from: address(12), to: address(16), tcp, end, ce: fixed[1] & 3 == 3 })
    }

    fn v6(packet: &[u8], offload: Offload) -> Result<Self, Senseless> {
        let fixed = packet.get(..40).ok_or(Senseless::Form)?;
        let address = |at: usize| fixed[at..at + 16].try_into().map(Address::V6).map_err(|_| Senseless::Form);
        let payload = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        let end = if payload == 0 { length(0, packet.len(), offload) } else { 40 + payload };
        let (mut next, mut tcp) = (fixed[6], 40);
        // Skip hop-by-hop, routing and destination options (RFC 8200 section 4).
        for _ in 0..EXTENSIONS {
            match next {
                0 | 43 | 60 => {
                    let extension = packet.get(tcp..tcp + 2).ok_or(Senseless::Form)?;
                    next = extension[0];
                    tcp += 8 + usize::from(extension[1]) * 8;
                }
                44 => return Err(Senseless::Fragment),
                _ => break,
            }
        }
        if next != TCP {
            return Err(Senseless::Form);
        }
        let ce = fixed[1] >> 4 & 3 == 3;
        Ok(Self { from: address(8)?, to: address(24)?, tcp, end, ce })
    }
}

/// The length of an IPv4 packet, or of an IPv6 packet whose length field is 0. That field is 0 in a
/// superpacket over 64 KiB; the packet then has as many bytes as were read.
fn length(declared: usize, there: usize, offload: Offload) -> usize {
    if declared == 0 && offload.segment > 0 {
        there
    } else {
        declared
    }
}
