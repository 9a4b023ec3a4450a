//! Builds libzmq from the source that comes with `zeromq-src`, with CURVE by libsodium.
#![allow(clippy::unwrap_used)] // a panic is how a build script fails

use std::env;

fn main() {
    let place = |what: &str| env::var(format!("DEP_SODIUM_{what}")).unwrap();
    let sodium = zeromq_src::LibLocation::new(place("LIB"), place("INCLUDE"));
    zeromq_src::Build::new().with_libsodium(Some(sodium)).build();
    println!("cargo:rerun-if-changed=build.rs");
}
