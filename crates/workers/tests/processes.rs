//! Tests with real worker processes that die at seeded steps and at random moments. The mean must equal that
//! of a single accumulator, bit for bit. The test binary is also the workers' program, so it has no test
//! harness.

#![allow(clippy::unwrap_used)]

#[cfg(target_os = "linux")]
mod linux;

#[cfg(target_os = "linux")]
fn main() {
    if std::env::var_os(linux::HOP).is_some() {
        return linux::be_a_hop();
    }
    let is = |what| std::env::var_os(what).is_some();
    if is(linux::TEMPLATE) {
        linux::template::run();
    } else if is(linux::WORKER) {
        linux::worker::run();
    } else if is(linux::NODE) {
        linux::be_a_node();
    } else {
        linux::tests();
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped: memory is shared on Linux only");
}
