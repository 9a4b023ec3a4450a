//! Programs that run in Linux's kernel (eBPF): written in C in `programs/`, compiled when this crate is built and kept in
//! it, loaded by [`aya`].
//!
//! Where there was no clang at build time there are no programs, and who asks for one is told so.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

use std::error::Error;
use std::io;

pub use aya;

mod built {
    include!(concat!(env!("OUT_DIR"), "/programs.rs"));
}

/// The programs of the transport unifl: object code for [`aya::Ebpf::load`].
///
/// # Errors
/// Why this build has none, with the mend.
pub fn unifl() -> Result<&'static [u8], String> {
    object(built::UNIFL)
}

/// The program that routes notes between the processes of a node: object code for [`aya::Ebpf::load`].
///
/// # Errors
/// As [`unifl`].
pub fn route() -> Result<&'static [u8], String> {
    object(built::ROUTE)
}

/// An error of [`aya`] with its causes, and what to do, if that is known.
pub fn explain(error: &(dyn Error + 'static)) -> String {
    let chain: Vec<&(dyn Error + 'static)> = std::iter::successors(Some(error), |&e| e.source()).collect();
    let text = chain.iter().map(ToString::to_string).collect::<Vec<_>>().join(": ");
    let denied = |e: &&(dyn Error + 'static)| {
        let io = e.downcast_ref::<io::Error>();
        io.is_some_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
    };
    if chain.iter().any(denied) {
        return format!("{text}; run it as root, or with CAP_BPF and CAP_NET_ADMIN");
    }
    text
}

fn object(built: Result<&'static [u8], &str>) -> Result<&'static [u8], String> {
    built.map_err(|why| {
        format!("this build has no eBPF programs ({why}); install clang and build again (CLANG=clang cargo build)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_programs_says_what_to_install() {
        let why = object(Err("clang did not run: not found")).err();
        assert!(why.is_some_and(|why| why.contains("did not run") && why.contains("install clang")));
    }

    #[test]
    fn what_was_built_is_object_code() {
        for built in [unifl(), route()] {
            match built {
                Ok(code) => assert_eq!(code.first_chunk(), Some(b"\x7fELF")),
                Err(why) => println!("skipped: {why}"),
            }
        }
    }

    #[test]
    fn what_is_denied_has_a_mend() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(explain(&denied).contains("CAP_BPF"));
        assert!(!explain(&io::Error::from(io::ErrorKind::NotFound)).contains("CAP_BPF"));
    }
}
