//! Mutations of valid bytes, such as a broken or hostile peer could send.

use thalweg_wire::{checksum, HEADER_BYTES};

use super::rng::Rng;

const LARGEST: usize = 4096;

/// Makes up to three random changes: bits, bytes, pieces, false lengths.
pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..rng.below(4) {
        let at = rng.below(bytes.len() + 1);
        match rng.below(8) {
            0 => flip(rng, bytes),
            1 => bytes.truncate(at),
            2 => bytes.insert(at, rng.any() as u8),
            3 => drop(bytes.drain(at..(at + rng.below(9)).min(bytes.len()))),
            4 => false_length(rng, bytes, at),
            5 => {
                let piece = bytes[at..(at + rng.below(40)).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            6 => {
                let from = rng.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => bytes.iter_mut().skip(at).take(4).for_each(|b| *b = [0, 0x7f, 0x80, 0xff][rng.below(4)]),
        }
    }
    bytes.truncate(LARGEST);
}

fn flip(rng: &mut Rng, bytes: &mut [u8]) {
    let at = rng.below(bytes.len());
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << rng.below(8);
    }
}

/// Replaces a byte by a number in the encoding of lengths: 7 bits per byte, low bits first.
fn false_length(rng: &mut Rng, bytes: &mut Vec<u8>, at: usize) {
    let mut number = rng.number();
    let mut encoded = Vec::new();
    while number >= 0x80 {
        encoded.push(number as u8 | 0x80);
        number >>= 7;
    }
    encoded.push(number as u8);
    bytes.splice(at..(at + 1).min(bytes.len()), encoded);
}

/// Makes checksums match again, so that a mutation behind them is reached. The header's checksum always
/// matches; often the length and the payload's checksum match too.
pub fn repair(rng: &mut Rng, frame: &mut [u8]) {
    let Some((header, payload)) = frame.split_at_mut_checked(HEADER_BYTES) else { return };
    header[..6].copy_from_slice(&[b't', b'l', b'w', b'g', 1, 1 + rng.below(2) as u8]);
    if rng.below(8) == 0 {
        header[4 + rng.below(2)] = rng.any() as u8; // version or kind
    }
    if rng.below(4) > 0 {
        header[8..12].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    }
    if rng.below(4) > 0 {
        header[12..16].copy_from_slice(&checksum(payload).to_le_bytes());
    }
    let sum = checksum(&header[..HEADER_BYTES - 4]);
    header[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
}
