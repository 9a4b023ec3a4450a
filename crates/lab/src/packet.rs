//! IP packets from TUN devices with IFF_VNET_HDR: single packets, and superpackets of many segments.
//!
//! A superpacket is what the sender's kernel would have cut into segments of one MTU each (TSO, USO). The
//! network carries segments. If one is lost, the superpacket is cut into the runs of segments around it. Each
//! run gets its own headers: IP length and identification, TCP sequence number and flags (RFC 9293, section
//! 3.1), UDP length, and the checksum of the pseudo-header, which the receiving kernel completes (virtio 1.2,
//! section 5.1.6).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the virtio header before each packet.
pub const VNET: usize = 10;
/// Largest read from a device: a superpacket of 64 KiB and the virtio header.
pub const LARGEST: usize = VNET + 65_536;
const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_UDP: u8 = 5;
/// Flag in the type of a superpacket: explicit congestion notification (ECN).
const GSO_ECN: u8 = 0x80;
const TCP_FIN_PSH: u8 = 0x01 | 0x08;
const TCP_CWR: u8 = 0x80;

/// A single packet, or a run of segments of a superpacket.
#[derive(Debug, Clone)]
pub struct Packet {
    vnet: [u8; VNET],
    /// Changed headers. `None`: the headers are in the buffer, before the payload.
    head: Option<Box<[u8]>>,
    headers: usize,
    transport: usize,
    buffer: Arc<Vec<u8>>,
    payload: Range<usize>,
    segment: usize,
    /// Address of the receiving host.
    pub destination: Destination,
}

/// The address to which a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address.
    V6(Ipv6Addr),
}

impl Packet {
    /// Parses what a device returned: `length` bytes of `buffer`, which are the virtio header of [`VNET`]
    /// bytes and the packet. `None` if it is not a valid IP packet.
    pub fn read(buffer: Arc<Vec<u8>>, length: usize) -> Option<Self> {
        let vnet: [u8; VNET] = buffer.get(..VNET)?.try_into().ok()?;
        let ip = buffer.get(VNET..length)?;
        let (destination, network) = match ip.first()? >> 4 {
            4 => {
                let bytes: [u8; 4] = ip.get(16..20)?.try_into().ok()?;
                (Destination::V4(bytes.into()), usize::from(ip[0] & 15) * 4)
            }
            6 => {
                let bytes: [u8; 16] = ip.get(24..40)?.try_into().ok()?;
                (Destination::V6(bytes.into()), 40)
            }
            _ => return None,
        };
        let kind = vnet[1] & !GSO_ECN;
        let size = usize::from(u16::from_ne_bytes([vnet[4], vnet[5]]));
        let start = usize::from(u16::from_ne_bytes([vnet[6], vnet[7]]));
        // A superpacket always leaves its checksum to the receiver, so the checksum's start is where TCP or
        // UDP begins.
        let (transport, headers, least) = match kind {
            GSO_NONE => (network, network.min(ip.len()), 0),
            GSO_UDP => (start, start + 8, 8),
            _ => (start, start + usize::from(ip.get(start + 12)? >> 4) * 4, 20),
        };
        if kind != GSO_NONE {
            let checksum = start + usize::from(u16::from_ne_bytes([vnet[8], vnet[9]])) + 2;
            let inside = transport >= network && headers >= transport + least && headers >= checksum;
            let plausible = size > 0 && vnet[0] & NEEDS_CHECKSUM > 0 && headers < ip.len();
            if network < 20 || !inside || !plausible {
                return None;
            }
        }
        let payload = VNET + headers..length;
        let segment = if kind == GSO_NONE { payload.len().max(1) } else { size };
        Some(Self { vnet, head: None, headers, transport, buffer, payload, segment, destination })
    }

    /// Number of packets that the network carries for it, at least 1.
    pub fn segments(&self) -> usize {
        self.payload.len().div_ceil(self.segment).max(1)
    }

    /// Bytes of the IP packets of all segments together.
    pub fn bytes(&self) -> usize {
        self.payload.len() + self.segments() * self.headers
    }

    /// Bytes of the IP packet of one segment.
    pub fn segment_bytes(&self, index: usize) -> usize {
        let left = self.payload.len().saturating_sub(index * self.segment);
        self.headers + left.min(self.segment)
    }

    /// The parts to write to a device, in order.
    pub fn parts(&self) -> [&[u8]; 3] {
        match &self.head {
            Some(head) => [&self.vnet, head, &self.buffer[self.payload.clone()]],
            None => [&self.vnet, &[], &self.buffer[VNET..self.payload.end]],
        }
    }

    /// Returns the buffer, if no other packet uses it.
    pub fn into_buffer(self) -> Option<Vec<u8>> {
        Arc::try_unwrap(self.buffer).ok()
    }

    /// A packet with the segments of this range.
    pub fn run(&self, segments: Range<usize>) -> Packet {
        let all = self.segments();
        if segments == (0..all) {
            return self.clone();
        }
        let (first, last) = (segments.start * self.segment, segments.end * self.segment);
        let payload = self.payload.start + first..(self.payload.start + last).min(self.payload.end);
        let mut head: Box<[u8]> = match &self.head {
            Some(head) => head.clone(),
            None => self.buffer[self.payload.start - self.headers..self.payload.start].into(),
        };
        let length = self.headers + payload.len();
        if self.kind() == GSO_UDP {
            put16(&mut head, self.transport + 4, (length - self.transport) as u16);
        } else {
            let place = self.transport + 4;
            let sequence =
                u32::from_be_bytes([head[place], head[place + 1], head[place + 2], head[place + 3]]);
            head[place..place + 4].copy_from_slice(&sequence.wrapping_add(first as u32).to_be_bytes());
            let flags = &mut head[self.transport + 13];
            if segments.end < all {
                *flags &= !TCP_FIN_PSH;
            }
            if segments.start > 0 {
                *flags &= !TCP_CWR;
            }
        }
        set_length(&mut head, length, segments.start as u16);
        let pseudo = self.pseudo_header(&head, length);
        let place = self.transport + usize::from(u16::from_ne_bytes([self.vnet[8], self.vnet[9]]));
        put16(&mut head, place, pseudo);
        let mut vnet = self.vnet;
        if segments.len() == 1 {
            // A single segment is no superpacket: clear type, header length and segment size.
            vnet[1..6].fill(0);
        }
        Packet { vnet, head: Some(head), payload, buffer: self.buffer.clone(), ..*self }
    }

    fn kind(&self) -> u8 {
        self.vnet[1] & !GSO_ECN
    }

    /// The checksum of addresses, protocol and length, not inverted (RFC 1071; RFC 9293, section 3.1).
    fn pseudo_header(&self, head: &[u8], length: usize) -> u16 {
        let (addresses, protocol) = match self.destination {
            Destination::V4(_) => (12..20, head[9]),
            Destination::V6(_) => (8..40, if self.kind() == GSO_UDP { 17 } else { 6 }),
        };
        let upper = (length - self.transport) as u32;
        fold(sum(&head[addresses]) + u32::from(protocol) + (upper >> 16) + (upper & 0xffff))
    }
}

/// Adjusts the IP header for a run with `length` bytes that starts `later` segments after the superpacket's
/// start.
fn set_length(head: &mut [u8], length: usize, later: u16) {
    if head[0] >> 4 == 6 {
        put16(head, 4, (length - 40) as u16);
        return;
    }
    put16(head, 2, length as u16);
    let identification = u16::from_be_bytes([head[4], head[5]]).wrapping_add(later);
    put16(head, 4, identification);
    put16(head, 10, 0);
    let network = usize::from(head[0] & 15) * 4;
    let checksum = !fold(sum(&head[..network]));
    put16(head, 10, checksum);
}

fn put16(bytes: &mut [u8], place: usize, value: u16) {
    bytes[place..place + 2].copy_from_slice(&value.to_be_bytes());
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
