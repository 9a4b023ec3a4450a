#![no_main]

#[path = "../../crates/proto/tests/unifl/hostile.rs"]
mod hostile;
#[allow(dead_code)]
#[path = "../../crates/proto/tests/unifl/wire.rs"]
mod wire;
#[path = "../../crates/proto/tests/unifl/witness.rs"]
mod witness;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hostile::storm(bytes);
});
