//! Builds libzmq from the source in `zeromq-src`, with libsodium for CURVE.
#![allow(clippy::unwrap_used)] // a panic is how a build script fails

use std::env;

fn main() {
    let place = |what: &str| env::var(format!("DEP_SODIUM_{what}")).unwrap();
    if env::var("CARGO_CFG_TARGET_OS").unwrap() == "linux" {
        // libzmq's own configure script sets this: sockets then wake each other with an eventfd instead of a
        // socket pair.
        let given = env::var("CXXFLAGS").unwrap_or_default();
        env::set_var("CXXFLAGS", format!("{given} -DZMQ_HAVE_EVENTFD=1 -DZMQ_HAVE_EVENTFD_CLOEXEC=1"));
    }
    let sodium = zeromq_src::LibLocation::new(place("LIB"), place("INCLUDE"));
    zeromq_src::Build::new().with_libsodium(Some(sodium)).build();
    println!("cargo:rerun-if-changed=build.rs");
}
