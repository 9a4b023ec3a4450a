#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thalweg_messages::fuzz::envelope(bytes));
