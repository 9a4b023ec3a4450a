//! Runs the fuzz targets on a stable compiler, with seeded mutations of valid samples. Each run has the same
//! frames.
//!
//! `THALWEG_FUZZ_FRAMES` sets the number of frames (default: one million), `THALWEG_FUZZ_SEED` sets the seed.

mod allocator;
mod mutate;
mod rng;
mod valid;

/// The checks of the fuzz targets.
#[path = "../../../../fuzz/src/lib.rs"]
mod targets;

use std::collections::BTreeSet;
use std::hint::black_box;

use rng::Rng;
use thalweg_wire::control::Control;
use thalweg_wire::{FrameHeader, Layout, Ranges, WireError, HEADER_BYTES};

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

/// Decoding n bytes may allocate at most `EACH` * n + `FIXED` bytes at a time. A tensor takes 64 bytes in
/// memory and 4 on the wire, and a growing vector exists twice for a moment. No decoder reserves more than 1
/// MiB for a list whose elements it has not read, and lists are nested at most twice.
const EACH: usize = 64;
const FIXED: usize = 2 << 20;
/// Number of valid samples of each kind, from which the mutations start.
const SAMPLES: usize = 512;

fn from_environment(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().expect("THALWEG_FUZZ_FRAMES and THALWEG_FUZZ_SEED are plain numbers")
}

/// Handles bytes as a receiver does: decodes the header, then the message behind it.
fn receive(bytes: &[u8]) -> Result<(), WireError> {
    let header = FrameHeader::decode(bytes)?;
    let payload = &bytes[HEADER_BYTES..];
    header.verify(&payload[..header.length().min(payload.len())])?;
    if header.kind == thalweg_wire::Kind::Control {
        black_box(Control::decode(payload)?);
    }
    Ok(())
}

fn assert_bounded<'a, T>(bytes: &'a [u8], decode: impl FnOnce(&'a [u8]) -> T) -> T {
    let (peak, outcome) = allocator::peak(|| decode(bytes));
    let bound = EACH * bytes.len() + FIXED;
    assert!(peak <= bound, "{} bytes made it allocate {peak}, over {bound}: {bytes:02x?}", bytes.len());
    outcome
}

/// Valid samples of one kind of bytes. Mutations of them are passed to `check`.
struct Kind {
    samples: Vec<Vec<u8>>,
    check: fn(&mut Rng, &mut [u8]) -> Option<WireError>,
}

impl Kind {
    fn new(
        rng: &mut Rng,
        sample: impl Fn(&mut Rng) -> Vec<u8>,
        check: fn(&mut Rng, &mut [u8]) -> Option<WireError>,
    ) -> Self {
        Self { samples: (0..SAMPLES).map(|_| sample(rng)).collect(), check }
    }

    fn feed(&self, rng: &mut Rng, buffer: &mut Vec<u8>) -> Option<WireError> {
        let (sample, other) = (rng.below(SAMPLES), rng.below(SAMPLES));
        buffer.clear();
        buffer.extend_from_slice(&self.samples[sample]);
        mutate::mutate(rng, buffer, &self.samples[other]);
        (self.check)(rng, buffer)
    }
}

fn check_frame(rng: &mut Rng, bytes: &mut [u8]) -> Option<WireError> {
    if rng.below(4) > 0 {
        mutate::repair(rng, bytes);
    }
    targets::frame_header(bytes);
    assert_bounded(bytes, receive).err()
}

fn check_control(_: &mut Rng, bytes: &mut [u8]) -> Option<WireError> {
    targets::control(bytes);
    assert_bounded(bytes, Control::decode).err()
}

fn check_layout(_: &mut Rng, bytes: &mut [u8]) -> Option<WireError> {
    targets::layout(bytes);
    let _ = assert_bounded(bytes, postcard::from_bytes::<Layout>);
    None
}

fn check_ranges(_: &mut Rng, bytes: &mut [u8]) -> Option<WireError> {
    targets::ranges(bytes);
    let _ = assert_bounded(bytes, postcard::from_bytes::<Ranges>);
    None
}

fn check_tree_answer(_: &mut Rng, bytes: &mut [u8]) -> Option<WireError> {
    assert_bounded(bytes, targets::tree_answer);
    None
}

fn check_noise(rng: &mut Rng, bytes: &mut [u8]) -> Option<WireError> {
    bytes.iter_mut().for_each(|byte| *byte = rng.any() as u8);
    targets::layout(bytes);
    targets::ranges(bytes);
    targets::control(bytes);
    check_frame(rng, bytes)
}

fn encoded(message: &Control) -> Vec<u8> {
    message.encode().expect("a small message encodes")
}

fn kinds(rng: &mut Rng) -> [Kind; 7] {
    let plain = |value: Result<Vec<u8>, postcard::Error>| value.expect("a valid value encodes");
    let message = |rng: &mut Rng| encoded(&valid::control(rng));
    let framed = move |rng: &mut Rng| {
        let payload = message(rng);
        valid::frame(rng, &payload, true)
    };
    let chunk = |rng: &mut Rng| {
        let payload = rng.text(200).into_bytes();
        valid::frame(rng, &payload, false)
    };
    [
        Kind::new(rng, framed, check_frame),
        Kind::new(rng, chunk, check_frame),
        Kind::new(rng, message, check_control),
        Kind::new(rng, |rng| plain(postcard::to_stdvec(&valid::layout(rng))), check_layout),
        Kind::new(rng, |rng| plain(postcard::to_stdvec(&valid::ranges(rng))), check_ranges),
        Kind::new(rng, valid::tree_answer, check_tree_answer),
        Kind::new(rng, |rng| vec![0; rng.below(200)], check_noise),
    ]
}

#[test]
fn no_bytes_do_harm() {
    let frames = from_environment("THALWEG_FUZZ_FRAMES", 1_000_000);
    let mut rng = Rng::new(from_environment("THALWEG_FUZZ_SEED", 1));
    let (kinds, mut buffer, mut refusals) = (kinds(&mut rng), Vec::new(), BTreeSet::new());
    let start = std::time::Instant::now();
    for _ in 0..frames {
        let kind = rng.below(kinds.len());
        if let Some(error) = kinds[kind].feed(&mut rng, &mut buffer) {
            if refusals.len() < 8 {
                let text = format!("{error:?}");
                refusals.insert(text.split([' ', '(']).next().unwrap_or_default().to_owned());
            }
        }
    }
    println!("{frames} frames in {:.1} s", start.elapsed().as_secs_f64());
    let all = "HeaderChecksum Kind Length Magic Message PayloadChecksum Truncated Version";
    let seen: Vec<&str> = refusals.iter().map(String::as_str).collect();
    assert!(frames < 100_000 || seen.join(" ") == all, "the mutations reach only {seen:?}");
}

#[test]
fn what_is_encoded_decodes_to_itself() {
    let mut rng = Rng::new(2);
    for _ in 0..20_000 {
        let message = valid::control(&mut rng);
        assert_eq!(Control::decode(&encoded(&message)), Ok(message));
        let chunk = valid::frame(&mut rng, b"payload", false);
        let header = FrameHeader::decode(&chunk).expect("a valid header decodes");
        assert_eq!(header.encode(), chunk[..HEADER_BYTES]);
        assert_eq!(header.verify(b"payload"), Ok(()));
    }
}

/// Long messages whose lists really have as many elements as they claim.
#[test]
fn long_lists_stay_within_the_bound() {
    let holes = (0..1 << 16).map(|n| thalweg_wire::Range::new(4 * n, 4 * n + 1)).collect();
    let need = encoded(&Control::Grant { parcel: 1, wanted: holes });
    assert!(need.len() > 1 << 18, "{}", need.len());
    assert!(assert_bounded(&need, Control::decode).is_ok());
    let tensors = (0..1 << 13).map(|n| (format!("{n}"), thalweg_wire::Dtype::U8, vec![]));
    let layout = Layout::pack(tensors).expect("so many tensors are allowed");
    let bytes = postcard::to_stdvec(&layout).expect("a layout encodes");
    assert_eq!(assert_bounded(&bytes, postcard::from_bytes::<Layout>), Ok(layout));
}
