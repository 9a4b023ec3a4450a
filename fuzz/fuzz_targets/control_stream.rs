#![no_main]

use thalweg_udp::fuzz::{control, KEY};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    control(bytes);
    if let Some((kind, rest)) = bytes.split_first() {
        control(&[&b"tlwc\x01"[..], &[*kind % 6, 0, 0], &KEY, rest].concat());
    }
});
