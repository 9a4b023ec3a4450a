//! The headers in front of a packet of a TAP device: the `virtio_net_hdr` and the Ethernet header. Offsets in
//! the first count from the beginning of the Ethernet frame (linux/virtio_net.h). In this crate's headers
//! they count from the beginning of the packet.

use crate::{Hardware, HEADER};

const ETHERNET: usize = 14;
/// Number of bytes of both headers.
pub(crate) const FRONT: usize = HEADER + ETHERNET;
const NEEDS_CHECKSUM: u8 = 1;
/// EtherTypes (IANA, IEEE 802 Numbers).
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// Source address of the frames that are written to the device: the relay's end of the wire.
const RELAY: Hardware = [2, 0, 0, 0, 0, 0];

/// Converts the front of a frame to the header of its packet.
pub(crate) fn taken(front: &[u8; FRONT]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header.copy_from_slice(&front[..HEADER]);
    moved(&mut header, |place| place.saturating_sub(ETHERNET as u16));
    header
}

/// Makes the front of a frame to the hardware address `to`. `packet` is the packet's header, and `first` the
/// first byte of the packet, whose upper half is the IP version.
pub(crate) fn put(packet: &[u8], to: Hardware, first: u8) -> [u8; FRONT] {
    let mut header = [0; HEADER];
    let known = packet.len().min(HEADER);
    header[..known].copy_from_slice(&packet[..known]);
    moved(&mut header, |place| place.saturating_add(ETHERNET as u16));
    let mut front = [0; FRONT];
    front[..HEADER].copy_from_slice(&header);
    front[HEADER..HEADER + 6].copy_from_slice(&to);
    front[HEADER + 6..HEADER + 12].copy_from_slice(&RELAY);
    front[HEADER + 12..].copy_from_slice(if first >> 4 == 6 { &IPV6 } else { &IPV4 });
    front
}

/// Applies `by` to the offsets in a header: the length of all headers if the packet is a superpacket, and the
/// start of the checksum if the checksum is incomplete.
fn moved(header: &mut [u8; HEADER], by: impl Fn(u16) -> u16) {
    let is_super = header[1] != 0;
    let has_checksum = header[0] & NEEDS_CHECKSUM != 0;
    for (at, there) in [(2, is_super), (6, has_checksum)] {
        if there {
            let place = u16::from_ne_bytes([header[at], header[at + 1]]);
            header[at..at + 2].copy_from_slice(&by(place).to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's header for an IPv4 TCP superpacket.
    const SUPER: [u8; HEADER] = {
        let [length, size, start] = [54_u16.to_ne_bytes(), 1448_u16.to_ne_bytes(), 34_u16.to_ne_bytes()];
        [1, 1, length[0], length[1], size[0], size[1], start[0], start[1], 16, 0]
    };

    #[test]
    fn places_are_the_frames_there_and_the_packets_here() {
        let mut front = [0; FRONT];
        front[..HEADER].copy_from_slice(&SUPER);
        let packet = taken(&front);
        assert_eq!(u16::from_ne_bytes([packet[2], packet[3]]), 40, "all headers but Ethernet's");
        assert_eq!(u16::from_ne_bytes([packet[6], packet[7]]), 20);
        let (to, first) = ([2, 0, 0, 0, 0, 7], 0x45);
        assert_eq!(put(&packet, to, first)[..HEADER], SUPER);
    }

    #[test]
    fn a_header_of_zeros_stays_one() {
        assert_eq!(taken(&[0; FRONT]), [0; HEADER]);
        let front = put(&[0; HEADER], [2, 0, 0, 0, 0, 9], 0x60);
        assert_eq!(front[..HEADER], [0; HEADER]);
        assert_eq!(front[HEADER..HEADER + 6], [2, 0, 0, 0, 0, 9]);
        assert_eq!(front[HEADER + 12..], IPV6);
    }
}
