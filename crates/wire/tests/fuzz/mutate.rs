//! What a broken or hostile peer makes of valid bytes.

use thalweg_wire::{checksum, HEADER_BYTES};

use super::dice::Dice;

const LARGEST: usize = 4096;

/// A few changes of any kind: bits, bytes, pieces, false lengths.
pub fn mutate(dice: &mut Dice, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..dice.below(4) {
        let at = dice.below(bytes.len() + 1);
        match dice.below(8) {
            0 => flip(dice, bytes),
            1 => bytes.truncate(at),
            2 => bytes.insert(at, dice.any() as u8),
            3 => drop(bytes.drain(at..(at + dice.below(9)).min(bytes.len()))),
            4 => false_length(dice, bytes, at),
            5 => {
                let piece = bytes[at..(at + dice.below(40)).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            6 => {
                let from = dice.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => bytes.iter_mut().skip(at).take(4).for_each(|b| *b = [0, 0x7f, 0x80, 0xff][dice.below(4)]),
        }
    }
    bytes.truncate(LARGEST);
}

fn flip(dice: &mut Dice, bytes: &mut [u8]) {
    let at = dice.below(bytes.len());
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << dice.below(8);
    }
}

/// Overwrites a byte with a number, as the messages write their lengths: 7 bits a byte, low ones first.
fn false_length(dice: &mut Dice, bytes: &mut Vec<u8>, at: usize) {
    let mut number = dice.number();
    let mut encoded = Vec::new();
    while number >= 0x80 {
        encoded.push(number as u8 | 0x80);
        number >>= 7;
    }
    encoded.push(number as u8);
    bytes.splice(at..(at + 1).min(bytes.len()), encoded);
}

/// Makes the checksums fit again, so that what they would hide gets through: always the header's, often the
/// length and the payload's too.
pub fn repair(dice: &mut Dice, frame: &mut [u8]) {
    let Some((header, payload)) = frame.split_at_mut_checked(HEADER_BYTES) else { return };
    header[..6].copy_from_slice(&[b't', b'l', b'w', b'g', 1, 1 + dice.below(2) as u8]);
    if dice.below(8) == 0 {
        header[4 + dice.below(2)] = dice.any() as u8; // version or kind
    }
    if dice.below(4) > 0 {
        header[8..12].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    }
    if dice.below(4) > 0 {
        header[12..16].copy_from_slice(&checksum(payload).to_le_bytes());
    }
    let sum = checksum(&header[..HEADER_BYTES - 4]);
    header[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
}
