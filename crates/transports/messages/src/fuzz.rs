//! Properties that hold for any message. libFuzzer checks them, and so does the test below.

use crate::envelope::{decode, encode};
use crate::shelf::ReportedChunks;
use crate::HEAD_BYTES;

/// Decoding a head either fails, or encoding the result gives a head that decodes to the same.
pub fn envelope(bytes: &[u8]) {
    let Some((tag, kind, head)) = decode(bytes) else { return };
    assert!(head <= bytes.len().min(HEAD_BYTES), "a head of {head} bytes");
    let again = encode(tag, &kind);
    assert_eq!(decode(&again), Some((tag, kind, head)));
    // Any bytes can be read as a list of held chunks.
    let _ = ReportedChunks::read(&bytes[head..]).has(u64::MAX);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::samples;

    #[test]
    fn damaged_heads_are_refused_or_read_back() {
        /// Offsets of a chunk's header in a head: after the common fields, or after two or three numbers.
        const HEADERS: [usize; 3] = [28, 28 + 16, 28 + 24];
        let mend = |rng: &mut thalweg_conformance::Rng, bytes: &mut [u8]| {
            let at = HEADERS[rng.below(HEADERS.len())];
            if rng.below(2) > 0 && bytes.len() > at {
                thalweg_conformance::repair(rng, &mut bytes[at..]);
            }
        };
        thalweg_conformance::damage(&samples(), mend, envelope);
    }
}
