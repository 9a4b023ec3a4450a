#![no_main]

mod fitted;

use fitted::fitted;
use thalweg_ltp::fuzz::{datagram, FRAME, KEY};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    datagram(bytes);
    datagram(&fitted([&KEY[..], bytes].concat(), FRAME));
});
