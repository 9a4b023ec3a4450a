//! SipHash-2-4 (Aumasson and Bernstein 2012): a keyed hash. Nobody can predict its value without the key. The
//! endpoint uses it for initial sequence numbers (RFC 6528) and timestamp offsets (RFC 7323 section 5.4).

/// The hash of `bytes` under a 128-bit key.
pub(super) fn siphash(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let mut absorb = |word: u64| {
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    };
    let words = bytes.chunks_exact(8);
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    last[7] = bytes.len() as u8;
    for word in words {
        absorb(word.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte)));
    }
    absorb(u64::from_le_bytes(last));
    v[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    let mut mix = |a: usize, b: usize, turn: u32| {
        v[a] = v[a].wrapping_add(v[b]);
        v[b] = v[b].rotate_left(turn) ^ v[a];
    };
    mix(0, 1, 13);
    mix(2, 3, 16);
    v[0] = v[0].rotate_left(32);
    let mut mix = |a: usize, b: usize, turn: u32| {
        v[a] = v[a].wrapping_add(v[b]);
        v[b] = v[b].rotate_left(turn) ^ v[a];
    };
    mix(2, 1, 17);
    mix(0, 3, 21);
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_paper_s_example() {
        let bytes: Vec<u8> = (0..15).collect();
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(siphash(key, &bytes), 0xa129_ca61_49be_45e5);
    }
}
