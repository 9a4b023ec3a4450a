//! The cost of a hole: figures 5 and 6 of UniFL, with a chained cipher and with ours, counted byte by byte.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::collections::BTreeSet;

use aes::cipher::{Block, BlockModeDecrypt, BlockModeEncrypt, KeyIvInit};
use proptest::prelude::*;
use thalweg_seal::{Cipher, Context, Opened, Refused, Stream, Streams, Suite};
use thalweg_wire::{Range, Ranges};

/// Bytes of payload in a segment: 90.5 blocks of AES.
const SEGMENT: u64 = 1448;
const AEAD: [Suite; 2] = [Suite::Aead(Cipher::Aes256Gcm), Suite::Aead(Cipher::ChaCha20Poly1305)];

fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn context(total: u64) -> Context {
    Context { job: 1, round: 2, sender: 3, layout: 4, offset: 0, total }
}

fn stream(suite: Suite, context: &Context, record: u32) -> Stream {
    Streams::new(suite, &[7; 32], b"salt").only(b"update", context, record).unwrap()
}

/// Opens a stream in which the bytes of `holes` have arbitrary values.
fn open(stream: &Stream, sealed: &[u8], holes: &Ranges) -> (Opened, Vec<u8>) {
    let (mut came, mut plain) = (sealed.to_vec(), vec![0xee; stream.grid().total() as usize]);
    let inside = holes.iter().map(|hole| hole.intersect(Range::new(0, sealed.len() as u64)));
    for hole in inside.filter(|hole| !hole.is_empty()) {
        came[hole.start as usize..hole.end as usize].fill(0x55);
    }
    let opened = stream.open(&mut came, holes, &mut plain).unwrap();
    (opened, plain)
}

fn sealed(stream: &Stream, plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    stream.seal(plain, &mut out).unwrap();
    out
}

fn hole(start: u64, bytes: u64) -> Ranges {
    [Range::new(start, start + bytes)].into_iter().collect()
}

/// A cipher that is chained through the whole stream of a connection, from one initialization vector. Its
/// reader gets the bytes one after the other, and cannot see where some were lost.
fn chained(plain: &[u8], lost: Range) -> Vec<u8> {
    let (key, vector) = ([9; 32], [8; 16]);
    let mut blocks: Vec<Block<aes::Aes256>> =
        plain.chunks_exact(16).map(|block| Block::<aes::Aes256>::try_from(block).unwrap()).collect();
    cbc::Encryptor::<aes::Aes256>::new(&key.into(), &vector.into()).encrypt_blocks(&mut blocks);
    let mut bytes: Vec<u8> = blocks.iter().flatten().copied().collect();
    bytes.drain(lost.start as usize..lost.end as usize);
    let mut blocks: Vec<_> =
        bytes.chunks_exact(16).map(|block| Block::<aes::Aes256>::try_from(block).unwrap()).collect();
    cbc::Decryptor::<aes::Aes256>::new(&key.into(), &vector.into()).decrypt_blocks(&mut blocks);
    blocks.iter().flatten().copied().collect()
}

/// Counts the bytes of whole blocks that are correct and in their place.
fn intact(plain: &[u8], opened: &[u8]) -> u64 {
    plain.chunks_exact(16).zip(opened.chunks_exact(16)).filter(|(a, b)| a == b).count() as u64 * 16
}

/// Figure 5: three packets are decrypted, the fourth is lost, and nothing behind it can be decrypted. Our
/// cipher loses only the records that the packet carried.
#[test]
fn figure_5_a_chained_cipher_dies_at_the_first_hole() {
    let plain = pattern(SEGMENT * 20 / 16 * 16);
    for packet in [0, 1, 3, 10] {
        let lost = Range::new(packet * SEGMENT, (packet + 1) * SEGMENT);
        assert_eq!(intact(&plain, &chained(&plain, lost)), lost.start / 16 * 16, "packet {packet}");
    }
    for suite in Suite::ALL {
        let stream = stream(suite, &context(plain.len() as u64), 1432);
        let bytes = sealed(&stream, &plain);
        for packet in [0, 1, 3, 10] {
            let holes = hole(packet * SEGMENT, SEGMENT);
            let (opened, _) = open(&stream, &bytes, &holes);
            assert!(opened.refused.is_empty());
            // A sealed AEAD record is as long as a segment, so a packet carries one record. A CBC record is 8
            // bytes longer.
            let touched = if suite.is_authenticated() || packet == 0 { 1 } else { 2 };
            assert_eq!(opened.missing.bytes(), touched * 1432, "{suite:?}, packet {packet}");
        }
    }
}

/// The paper does not mention this. If the reader knows where the hole is, and it consists of whole blocks,
/// only one more block is lost. A chained stream cannot continue only because the reader does not know.
#[test]
fn a_chained_cipher_that_knows_the_hole_would_go_on() {
    let plain = pattern(16 * 400);
    let came = chained(&plain, Range::new(16 * 50, 16 * 140));
    assert_eq!(came.len(), 16 * 310);
    assert_eq!(came[..16 * 50], plain[..16 * 50]);
    assert_ne!(came[16 * 50..16 * 51], plain[16 * 140..16 * 141]);
    assert_eq!(came[16 * 51..], plain[16 * 141..]);
}

/// Figure 6: both ends need a round trip to agree on a new chain, and what is in flight meanwhile is lost
/// too. With a window of `window` packets, each hole costs its packet and the window behind it. With our
/// cipher it costs only the packet's records.
#[test]
fn figure_6_new_keys_cost_a_window_and_records_do_not() {
    let (packets, window) = (400_u64, 50_u64);
    let plain = pattern(packets * 1432);
    let drops = [20, 30, 120, 399];
    // A chain starts again one window after each hole that it sees.
    let (mut lost, mut deaf_until) = (0, 0);
    for packet in 0..packets {
        if packet < deaf_until {
            lost += 1;
        } else if drops.contains(&packet) {
            lost += 1;
            deaf_until = packet + 1 + window;
        }
    }
    assert_eq!(lost, (1 + window) + (1 + window) + 1, "the second falls into the first one's window");
    for suite in AEAD {
        let stream = stream(suite, &context(plain.len() as u64), 1432);
        let holes: Ranges =
            drops.iter().map(|&packet| Range::new(packet * SEGMENT, (packet + 1) * SEGMENT)).collect();
        let (opened, came) = open(&stream, &sealed(&stream, &plain), &holes);
        assert_eq!(opened.missing.bytes(), drops.len() as u64 * 1432);
        for range in opened.missing.holes(plain.len() as u64).iter() {
            let at = range.start as usize..range.end as usize;
            assert_eq!(came[at.clone()], plain[at]);
        }
    }
}

/// A lost segment costs as many bytes of records as `record_cost` assumes: `segment + record` bytes on
/// average over all places.
#[test]
fn a_segment_costs_itself_and_a_record_on_average() {
    let (record, stride) = (1000_u64, 1016_u64);
    let stream = stream(AEAD[0], &context(record * 40), record as u32);
    let places = 10 * stride..11 * stride;
    let lost: u64 = places.clone().map(|at| stream.grid().lost(&hole(at, SEGMENT)).bytes()).sum();
    let mean = lost as f64 / (places.end - places.start) as f64;
    // With holes of whole bytes, these are exactly (segment + stride - 1) / stride records.
    let expected = (SEGMENT + stride - 1) as f64 / stride as f64 * record as f64;
    assert!((mean - expected).abs() < 1e-9, "{mean} and {expected}");
}

#[test]
fn records_of_another_round_client_job_layout_or_place_are_refused() {
    let total = 5000;
    let (plain, real) = (pattern(total), context(total));
    let others = [
        Context { job: 9, ..real },
        Context { round: 9, ..real },
        Context { sender: 9, ..real },
        Context { layout: 9, ..real },
        Context { offset: 9, ..real },
        Context { total: total - 1, ..real },
    ];
    for suite in AEAD {
        let streams = Streams::new(suite, &[7; 32], b"salt");
        let bytes = sealed(&streams.only(b"update", &real, 1000).unwrap(), &plain);
        let refused = |stream: &Stream| {
            let (opened, came) = open(stream, &bytes, &Ranges::new());
            assert_eq!(opened.refused.bytes() + opened.missing.bytes(), stream.grid().total());
            assert!(came.iter().all(|&byte| byte == 0xee), "something was written");
        };
        for other in &others {
            refused(&streams.only(b"update", other, 1000).unwrap());
        }
        refused(&streams.only(b"updates", &real, 1000).unwrap());
        refused(&Streams::new(suite, &[6; 32], b"salt").only(b"update", &real, 1000).unwrap());
        refused(&Streams::new(suite, &[7; 32], b"pepper").only(b"update", &real, 1000).unwrap());
        refused(&streams.only(b"update", &real, 500).unwrap());
    }
    let gcm = sealed(&stream(AEAD[0], &real, 1000), &plain);
    let (opened, _) = open(&stream(AEAD[1], &real, 1000), &gcm, &Ranges::new());
    assert_eq!(opened.refused.bytes(), total, "another cipher");
}

#[test]
fn records_at_another_place_are_refused_and_the_others_are_not() {
    let plain = pattern(10 * 100);
    for suite in AEAD {
        let stream = stream(suite, &context(1000), 100);
        let mut bytes = sealed(&stream, &plain);
        let (third, fifth) = (bytes[232..348].to_vec(), bytes[464..580].to_vec());
        bytes[232..348].copy_from_slice(&fifth);
        bytes[464..580].copy_from_slice(&third);
        let swapped: Ranges = [Range::new(200, 300), Range::new(400, 500)].into_iter().collect();
        assert_eq!(open(&stream, &bytes, &Ranges::new()).0.refused, swapped);
        bytes[232..348].copy_from_slice(&third); // the third record also in the place of the fifth
        assert_eq!(open(&stream, &bytes, &Ranges::new()).0.refused, hole(400, 100));
    }
}

#[test]
fn a_stream_is_opened_once() {
    let context = context(100);
    let streams = Streams::new(AEAD[0], &[7; 32], b"salt");
    let (sealer, opener) = (streams.sealer(b"up"), streams.opener(b"up"));
    let sent: Vec<Stream> = (0..3).map(|_| sealer.stream(&context, 64).unwrap()).collect();
    assert_eq!(sent.iter().map(Stream::number).collect::<Vec<_>>(), [0, 1, 2]);
    let bytes = sealed(&sent[1], &pattern(100));
    assert_ne!(bytes, sealed(&sent[2], &pattern(100)), "the same bytes are sealed otherwise each time");
    let twice = [opener.stream(1, &context, 64).unwrap(), opener.stream(1, &context, 64).unwrap()];
    assert!(twice.iter().all(|stream| open(stream, &bytes, &Ranges::new()).0.is_whole()));
    assert_eq!(opener.opened(&twice[0]), Ok(()));
    assert_eq!(opener.opened(&twice[1]), Err(Refused::Replayed), "the other was faster");
    assert_eq!(opener.stream(1, &context, 64).err(), Some(Refused::Replayed));
    assert!(opener.stream(0, &context, 64).is_ok(), "it was overtaken");
    assert_eq!(open(&opener.stream(2, &context, 64).unwrap(), &bytes, &Ranges::new()).0.refused.bytes(), 100);
    assert_eq!(opener.stream(1 << 40, &context, 64).err(), Some(Refused::Forged), "far ahead");
    assert_eq!(opener.stream(3, &context, 0).err(), Some(Refused::Length));
}

#[test]
fn keys_change_with_the_numbers() {
    let (streams, context) = (Streams::new(AEAD[0], &[7; 32], b"salt"), context(64));
    let opener = streams.opener(b"up");
    let first = opener.stream(thalweg_seal::STREAMS - 1, &context, 64).unwrap();
    let next = opener.stream(thalweg_seal::STREAMS, &context, 64).unwrap();
    let bytes = sealed(&first, &pattern(64));
    assert!(open(&first, &bytes, &Ranges::new()).0.is_whole());
    assert!(!open(&next, &bytes, &Ranges::new()).0.is_whole());
    assert_ne!(bytes[..64], sealed(&next, &pattern(64))[..64]);
}

#[test]
fn lengths_that_do_not_fit_are_an_error() {
    let stream = stream(AEAD[0], &context(100), 10);
    let mut out = b"before".to_vec();
    assert_eq!(stream.seal(&[0; 99], &mut out), Err(Refused::Length));
    assert_eq!(out, b"before");
    assert_eq!(stream.open(&mut [], &Ranges::new(), &mut [0; 101]), Err(Refused::Length));
}

/// This is why `aes-cbc` is for comparison only. Flipping a bit of the vector flips that bit of the
/// plaintext.
#[test]
#[cfg(feature = "baselines")]
fn cbc_lets_anybody_choose_bits() {
    let (plain, stream) = (pattern(1000), stream(Suite::AesCbc, &context(1000), 500));
    let mut bytes = sealed(&stream, &plain);
    bytes[5] ^= 0x40;
    let (opened, came) = open(&stream, &bytes, &Ranges::new());
    assert!(opened.is_whole(), "nobody notices");
    assert_eq!(came[5], plain[5] ^ 0x40);
    assert_eq!((&came[..5], &came[6..]), (&plain[..5], &plain[6..]));
}

#[test]
#[cfg(not(feature = "baselines"))]
fn a_build_without_baselines_does_not_seal_with_cbc() {
    assert!(!Suite::AesCbc.is_available() && !Suite::ALL.contains(&Suite::AesCbc));
    let streams = Streams::new(Suite::AesCbc, &[7; 32], b"salt");
    assert_eq!(streams.only(b"update", &context(100), 10).map(drop), Err(Refused::Suite));
    assert_eq!(streams.sealer(b"up").stream(&context(100), 10).map(drop), Err(Refused::Suite));
    assert_eq!(streams.opener(b"up").stream(0, &context(100), 10).map(drop), Err(Refused::Suite));
}

#[test]
fn names_are_those_of_plans() {
    for suite in Suite::ALL {
        assert_eq!(suite.name().parse(), Ok(suite));
    }
    assert_eq!("aes-cbc".parse(), Ok(Suite::AesCbc), "in every build");
    let error = "rot13".parse::<Suite>().unwrap_err();
    assert!(error.contains("aes-256-gcm, chacha20-poly1305, aes-cbc"), "{error}");
}

proptest! {
    /// Compares with the plainest model: the record of each byte of plaintext, and whether a byte of that
    /// record is missing.
    #[test]
    fn what_comes_is_what_was_sent_and_the_rest_is_named(
        total in 0..3000_u64,
        record in 1..400_u32,
        holes in prop::collection::vec((0..4000_u64, 0..300_u64), 0..5),
        cut in 0..200_u64,
    ) {
        for suite in Suite::ALL {
            let (plain, stream) = (pattern(total), stream(suite, &context(total), record));
            let mut bytes = sealed(&stream, &plain);
            prop_assert_eq!(bytes.len() as u64, stream.grid().sealed_bytes());
            let all = bytes.len() as u64;
            let mut holes: Ranges = holes.iter().map(|&(at, n)| Range::new(at, at + n)).collect();
            bytes.truncate(all.saturating_sub(cut) as usize);
            let (opened, came) = open(&stream, &bytes, &holes);
            holes.insert(Range::new(bytes.len() as u64, all));
            let stride = suite.sealed(record.into());
            let dead: BTreeSet<u64> = holes
                .iter()
                .flat_map(|hole| hole.start..hole.end.min(all))
                .map(|byte| byte / stride)
                .collect();
            prop_assert!(opened.refused.is_empty());
            for at in 0..total {
                let missing = dead.contains(&(at / u64::from(record)));
                prop_assert_eq!(opened.missing.covers(Range::new(at, at + 1)), missing);
                prop_assert_eq!(came[at as usize], if missing { 0xee } else { plain[at as usize] });
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_refused_with_its_record_alone(
        total in 1..2000_u64,
        record in 1..400_u32,
        at in any::<prop::sample::Index>(),
        bit in 0..8_u8,
    ) {
        for suite in AEAD {
            let (plain, stream) = (pattern(total), stream(suite, &context(total), record));
            let mut bytes = sealed(&stream, &plain);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let (opened, came) = open(&stream, &bytes, &Ranges::new());
            let hit = stream.grid().plain(at as u64 / suite.sealed(record.into()));
            prop_assert_eq!(opened.refused, hole(hit.start, hit.len()));
            prop_assert!(opened.missing.is_empty());
            let range = hit.start as usize..hit.end as usize;
            prop_assert!(came[range.clone()].iter().all(|&byte| byte == 0xee));
            prop_assert_eq!(&came[..range.start], &plain[..range.start]);
            prop_assert_eq!(&came[range.end..], &plain[range.end..]);
        }
    }

    #[test]
    fn arbitrary_bytes_open_nothing(
        bytes in prop::collection::vec(any::<u8>(), 0..800),
        total in 0..600_u64,
        record in 1..100_u32,
    ) {
        for suite in AEAD {
            let (opened, came) = open(&stream(suite, &context(total), record), &bytes, &Ranges::new());
            prop_assert_eq!(opened.missing.bytes() + opened.refused.bytes(), total);
            prop_assert!(came.iter().all(|&byte| byte == 0xee));
        }
    }
}

/// Without the key, the hidden checksum of a stream says nothing about its plaintext. Checksums of other
/// streams do not help.
#[test]
fn a_pad_is_of_one_stream() {
    for suite in AEAD {
        let streams = Streams::new(suite, &[7; 32], b"salt");
        let (sealer, opener) = (streams.sealer(b"up"), streams.opener(b"up"));
        let (one, other) =
            (sealer.stream(&context(100), 10).unwrap(), sealer.stream(&context(100), 10).unwrap());
        let again = opener.stream(one.number(), &context(100), 10).unwrap();
        assert_eq!(one.pad(), again.pad());
        assert_ne!(one.pad(), other.pad());
        assert_ne!(one.pad(), stream(suite, &context(100), 10).pad());
        assert_eq!(stream(suite, &context(1 << 32), 1).pad(), Err(Refused::Length));
    }
    #[cfg(feature = "baselines")]
    assert_eq!(stream(Suite::AesCbc, &context(100), 10).pad(), Ok(0));
}
