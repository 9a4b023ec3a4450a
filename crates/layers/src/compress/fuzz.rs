//! Checks what must hold for any bytes of a compressed chunk. libFuzzer and the test below use it.

use thalweg_wire::{Dtype, Layout, Range, Ranges, MAX_CHUNK};

use super::codec::{decode, holds, pieces, Format, PREFACE};
use super::{Compress, Scheme};

/// The first eight bytes are an offset. The rest is checked as a chunk's payload: it is refused, or has a
/// bounded length and is decoded to its end. Then the rest is checked as an update: values that were rounded
/// once do not change when they are rounded again, and a chunk of them states its length.
///
/// # Panics
/// If one of these does not hold.
pub fn compressed(bytes: &[u8]) {
    let Some((offset, payload)) = bytes.split_first_chunk() else { return };
    if let Some((length, _)) = holds(u64::from_le_bytes(*offset), payload) {
        assert!(length <= MAX_CHUNK);
        decode(u64::from_le_bytes(*offset), payload, &mut vec![0; length as usize]);
    }
    for way in ways() {
        round_trip(way, &payload[..payload.len() / 4 * 4]);
    }
}

/// All ways to encode an update.
fn ways() -> [Compress; 6] {
    [
        Format::F16.into(),
        Format::Int8.into(),
        Scheme::Int8.into(),
        Scheme::Int4.into(),
        Scheme::Int2.into(),
        Scheme::TopK(0.1).into(),
    ]
}

fn round(way: Compress, layout: &Layout, update: &mut [u8]) {
    match way.scheme {
        Some(scheme) => scheme.round(layout, update),
        None => way.format.round(layout, update),
    }
}

fn round_trip(way: Compress, values: &[u8]) {
    let layout = Layout::pack([("w", Dtype::F32, vec![values.len() as u64 / 4])]).expect("one tensor");
    let mut update = values.to_vec();
    round(way, &layout, &mut update);
    let once = update.clone();
    round(way, &layout, &mut update);
    assert_eq!(update, once, "rounded twice");
    let whole = Range::new(0, once.len() as u64);
    let mut payload = [&(once.len() as u32).to_le_bytes()[..], &[0; PREFACE - 4]].concat();
    for piece in pieces(whole) {
        let part = &once[piece.start as usize..piece.end as usize];
        way.write(piece, part, &Ranges::new(), &mut payload);
    }
    assert_eq!(holds(0, &payload), Some((once.len() as u32, 0)));
    let mut out = vec![0xaa; once.len()];
    decode(0, &payload, &mut out);
    assert_eq!(out, once, "sent");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks with all kinds of pieces, each after its offset.
    fn samples() -> Vec<Vec<u8>> {
        let mut update: Vec<u8> =
            (0..600).flat_map(|n| ((n as f32 - 300.0) * 1.7e-3).to_le_bytes()).collect();
        update[1024..2048].fill(0);
        update[2050] = 0xff;
        update[2051] = 0x7f; // a number too large to be rounded
        let chunk = |way: Compress, from: usize, to: usize| {
            let layout = Layout::pack([("w", Dtype::F32, vec![600])]).unwrap();
            let mut update = update.clone();
            round(way, &layout, &mut update);
            let mut payload = [&((to - from) as u32).to_le_bytes()[..], &[0; PREFACE - 4]].concat();
            for piece in pieces(Range::new(from as u64, to as u64)) {
                let part = &update[piece.start as usize..piece.end as usize];
                way.write(piece, part, &Ranges::new(), &mut payload);
            }
            [&(from as u64).to_le_bytes()[..], &payload].concat()
        };
        let cuts = [(0, 2400), (512, 1536), (1022, 1030), (2048, 2400)];
        let all = |(from, to)| ways().map(|way| chunk(way, from, to));
        cuts.into_iter().flat_map(all).collect()
    }

    #[test]
    fn damaged_chunks_are_refused_or_read_to_their_end() {
        assert!(samples().iter().all(|sample| holds(
            u64::from_le_bytes(sample[..8].try_into().unwrap()),
            &sample[8..]
        )
        .is_some()));
        thalweg_conformance::damage(&samples(), |_, _| {}, compressed);
    }
}
