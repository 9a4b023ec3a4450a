#![no_main]

#[path = "../../crates/masking/tests/unifl/hostile.rs"]
mod hostile;
#[allow(dead_code)]
#[path = "../../crates/masking/tests/unifl/wire.rs"]
mod wire;
#[path = "../../crates/masking/tests/unifl/witness.rs"]
mod witness;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hostile::storm(bytes);
});
