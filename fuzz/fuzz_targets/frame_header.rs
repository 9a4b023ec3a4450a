#![no_main]

mod fitted;

use fitted::fitted;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    thalweg_fuzz::frame_header(bytes);
    thalweg_fuzz::frame_header(&fitted(bytes.to_vec(), 0));
});
