#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thalweg_layers::fuzz::compressed(bytes));
