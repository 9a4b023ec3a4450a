//! Writes TCP segments into IP packets. If the device does segmentation, one superpacket holds several.
//!
//! A TUN device ignores `DATA_VALID` on packets that we write to it. So a packet needs a valid checksum, or
//! `NEEDS_CSUM`.

use super::checksum::{fold, pseudo, sum};
use super::options::Written;
use super::segment::{Checksum, Offload, CHECKSUM};
use super::{Address, Tuple};

/// A TCP segment to be sent from `tuple.local` to `tuple.remote`.
pub(super) struct Outbound<'a> {
    pub tuple: &'a Tuple,
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    pub window: u16,
    pub options: Written,
    /// The payload in two slices, as a ring buffer has it.
    pub payload: (&'a [u8], &'a [u8]),
    /// Whether to mark the packet as ECN-capable transport (RFC 3168 section 6.1.2). Only new data may have
    /// the mark.
    pub ect: bool,
}

impl Outbound<'_> {
    /// Writes the packet into `out`, and replaces what was there. With `offload`, the device cuts it into
    /// segments of at most that payload, and completes their checksums.
    pub fn write(&self, out: &mut Vec<u8>, offload: Option<u16>) -> Offload {
        out.clear();
        let options = self.options.bytes();
        let payload = self.payload.0.len() + self.payload.1.len();
        let tcp_bytes = 20 + options.len() + payload;
        let (from, to) = (self.tuple.local.address, self.tuple.remote.address);
        let ect = u8::from(self.ect) * 2;
        match (from, to) {
            (Address::V6(from), Address::V6(to)) => {
                out.extend([0x60, ect << 4, 0, 0]);
                out.extend((tcp_bytes as u16).to_be_bytes());
                out.extend([6, 64]);
                out.extend(from);
                out.extend(to);
            }
            (Address::V4(from), Address::V4(to)) => {
                out.extend([0x45, ect]);
                out.extend((20 + tcp_bytes as u16).to_be_bytes());
                // Don't Fragment is set, so the identification may be 0 (RFC 6864 section 4.1).
                out.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
                out.extend(from);
                out.extend(to);
                let checksum = !fold(sum(out));
                out[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            // Unreachable, since both addresses of a tuple are of the same family.
            _ => return Offload::default(),
        }
        let start = out.len();
        out.extend(self.tuple.local.port.to_be_bytes());
        out.extend(self.tuple.remote.port.to_be_bytes());
        out.extend(self.sequence.to_be_bytes());
        out.extend(self.acknowledgement.to_be_bytes());
        out.extend([(5 + options.len() as u8 / 4) << 4, self.flags]);
        out.extend(self.window.to_be_bytes());
        out.extend([0; 4]);
        out.extend(options);
        out.extend(self.payload.0);
        out.extend(self.payload.1);
        let named = pseudo(&from, &to, tcp_bytes);
        let checksum = match offload {
            Some(_) => fold(named),
            None => !fold(named + sum(&out[start..])),
        };
        let place = start + usize::from(CHECKSUM);
        out[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
        offload.map_or_else(Offload::default, |each| {
            let segment = if payload > usize::from(each) { each } else { 0 };
            Offload { checksum: Checksum::Partial, segment }
        })
    }
}
