//! Encodes and decodes segments independently of the endpoint. A mistake that both shared would not be found.

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;
pub const ECE: u8 = 64;
pub const CWR: u8 = 128;
/// The port on which the endpoint listens.
pub const PORT: u16 = 9000;

/// A segment in either direction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seg {
    pub v6: bool,
    /// The endpoint's port, if the endpoint sends the segment.
    pub local: u16,
    /// The client's port, and the number of its host.
    pub port: u16,
    pub host: u8,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack_ok: bool,
    pub stamps: Option<(u32, u32)>,
    pub sack: Vec<(u32, u32)>,
    pub payload: Vec<u8>,
    pub ce: bool,
}

pub fn sum(bytes: &[u8]) -> u32 {
    let pairs = bytes.chunks_exact(2);
    let last = pairs.remainder().first().map_or(0, |&byte| u32::from(byte) << 8);
    last + pairs.map(|c| u32::from(c[0]) << 8 | u32::from(c[1])).sum::<u32>()
}

pub fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Corrects the checksums of a packet, if it is one.
pub fn mend(packet: &mut [u8]) {
    let v6 = packet.first().is_some_and(|first| first >> 4 == 6);
    let (start, addresses) = if v6 { (40, 8..40) } else { (20, 12..20) };
    if packet.len() < start + 20 {
        return;
    }
    let set = |bytes: &mut [u8], at: usize, others: u32| {
        bytes[at..at + 2].fill(0);
        let checksum = !fold(others + sum(bytes));
        bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    };
    if !v6 {
        set(&mut packet[..20], 10, 0);
    }
    let pseudo = sum(&packet[addresses]) + 6 + (packet.len() - start) as u32;
    set(&mut packet[start..], 16, pseudo);
}

impl Seg {
    /// Encodes a segment of a client.
    pub fn encode(&self) -> Vec<u8> {
        let mut options = Vec::new();
        if let Some(mss) = self.mss {
            options.extend([2, 4]);
            options.extend(mss.to_be_bytes());
        }
        if self.sack_ok {
            options.extend([4, 2, 1, 1]);
        }
        if let Some((value, echo)) = self.stamps {
            options.extend([1, 1, 8, 10]);
            options.extend(value.to_be_bytes());
            options.extend(echo.to_be_bytes());
        }
        if let Some(scale) = self.scale {
            options.extend([1, 3, 3, scale]);
        }
        let mut tcp = Vec::with_capacity(60 + self.payload.len());
        tcp.extend(self.port.to_be_bytes());
        tcp.extend(if self.local == 0 { PORT } else { self.local }.to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([(5 + options.len() as u8 / 4) << 4, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(options);
        let mut packet = self.ip(tcp.len() + self.payload.len());
        packet.extend(tcp);
        packet.extend(&self.payload);
        mend(&mut packet);
        packet
    }

    fn ip(&self, length: usize) -> Vec<u8> {
        let tos = if self.ce { 3 } else { 0 };
        if self.v6 {
            let host = |last: u8| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
            let mut packet = vec![0x60, tos << 4, 0, 0];
            packet.extend((length as u16).to_be_bytes());
            packet.extend([6, 64]);
            packet.extend(host(self.host));
            packet.extend(host(1));
            return packet;
        }
        let mut packet = vec![0x45, tos];
        packet.extend((20 + length as u16).to_be_bytes());
        packet.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, self.host, 10, 0, 0, 1]);
        packet
    }

    /// Decodes a segment of the endpoint. Checks its checksums, which must be complete.
    pub fn decode(packet: &[u8]) -> Seg {
        let v6 = packet[0] >> 4 == 6;
        let (start, addresses, host, length) = if v6 {
            let length = u16::from_be_bytes([packet[4], packet[5]]);
            (40, &packet[8..40], packet[39], usize::from(length) + 40)
        } else {
            assert_eq!(fold(sum(&packet[..20])), 0xffff, "IP checksum");
            (20, &packet[12..20], packet[19], usize::from(u16::from_be_bytes([packet[2], packet[3]])))
        };
        assert_eq!(length, packet.len(), "IP length");
        let tcp = &packet[start..];
        assert_eq!(fold(sum(addresses) + 6 + tcp.len() as u32 + sum(tcp)), 0xffff, "TCP checksum");
        let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().expect("four bytes"));
        let short = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let end = usize::from(tcp[12] >> 4) * 4;
        let mut seg = Seg {
            v6,
            local: short(0),
            port: short(2),
            host,
            seq: number(4),
            ack: number(8),
            flags: tcp[13],
            window: short(14),
            payload: tcp[end..].to_vec(),
            ..Seg::default()
        };
        let mut at = 20;
        while at < end {
            let length = if tcp[at] < 2 { 1 } else { usize::from(tcp[at + 1]) };
            match tcp[at] {
                2 => seg.mss = Some(short(at + 2)),
                3 => seg.scale = Some(tcp[at + 2]),
                4 => seg.sack_ok = true,
                8 => seg.stamps = Some((number(at + 2), number(at + 6))),
                5 => {
                    seg.sack =
                        (at + 2..at + length).step_by(8).map(|at| (number(at), number(at + 4))).collect();
                }
                _ => {}
            }
            at += length;
        }
        seg
    }
}

/// The byte of the stream at an offset.
pub fn byte(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The bytes of the stream from an offset on.
pub fn bytes(offset: u64, length: usize) -> Vec<u8> {
    (offset..offset + length as u64).map(byte).collect()
}
