//! Test helpers: packets like those of a sender's kernel, and labs with a few hosts.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(dead_code)] // each test file uses only a part

use std::sync::Arc;
use std::time::Duration;

use thalweg_lab::{addresses, Fabric, Packet, Spec, VNET};

pub fn ms(milliseconds: f64) -> Duration {
    Duration::from_secs_f64(milliseconds / 1e3)
}

pub fn spec(json: &str) -> Spec {
    Spec::parse(json).unwrap()
}

pub fn fabric(json: &str) -> Fabric {
    Fabric::new(&spec(json), 1).unwrap()
}

/// A packet from one host to another.
#[derive(Clone, Copy)]
pub struct Made {
    pub from: usize,
    pub to: usize,
    pub v6: bool,
    pub udp: bool,
    pub payload: usize,
    /// Bytes of payload in a segment; 0 for a packet that is not a superpacket.
    pub segment: usize,
}

pub const SMALL: Made = Made { from: 0, to: 1, v6: false, udp: false, payload: 1448, segment: 0 };
pub const SUPER: Made = Made { payload: 44 * 1448 - 100, segment: 1448, ..SMALL };

impl Made {
    pub fn headers(&self) -> usize {
        self.network() + if self.udp { 8 } else { 32 }
    }

    pub fn network(&self) -> usize {
        if self.v6 {
            40
        } else {
            20
        }
    }

    pub fn packet(&self) -> Packet {
        let bytes = self.bytes();
        let length = bytes.len();
        Packet::read(Arc::new(bytes), length).unwrap()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let (start, length) = (self.network(), self.headers() + self.payload);
        let mut vnet = [0; VNET];
        vnet[0] = 1;
        if self.segment > 0 {
            vnet[1] = [1, 4, 5, 5][usize::from(self.udp) * 2 + usize::from(self.v6)];
            vnet[2..4].copy_from_slice(&(self.headers() as u16).to_ne_bytes());
            vnet[4..6].copy_from_slice(&(self.segment as u16).to_ne_bytes());
        }
        vnet[6..8].copy_from_slice(&(start as u16).to_ne_bytes());
        vnet[8..10].copy_from_slice(&(if self.udp { 6_u16 } else { 16 }).to_ne_bytes());
        let mut ip = vec![0; self.headers()];
        let protocol = if self.udp { 17 } else { 6 };
        let ((a4, a6), (b4, b6)) = (addresses(self.from), addresses(self.to));
        if self.v6 {
            ip[0] = 0x60;
            ip[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
            ip[6] = protocol;
            ip[8..24].copy_from_slice(&a6.octets());
            ip[24..40].copy_from_slice(&b6.octets());
        } else {
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&65_530_u16.to_be_bytes());
            ip[9] = protocol;
            ip[12..16].copy_from_slice(&a4.octets());
            ip[16..20].copy_from_slice(&b4.octets());
        }
        if self.udp {
            ip[start + 4..start + 6].copy_from_slice(&((length - start) as u16).to_be_bytes());
        } else {
            ip[start + 4..start + 8].copy_from_slice(&(u32::MAX - 5000).to_be_bytes());
            ip[start + 12] = 8 << 4;
            ip[start + 13] = 0x10 | 0x08 | 0x01 | 0x80;
        }
        let payload = (0..self.payload).map(|i| (i * 7 + i / 251) as u8);
        vnet.into_iter().chain(ip).chain(payload).collect()
    }
}
