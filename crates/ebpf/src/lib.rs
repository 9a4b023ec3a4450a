//! Programs that run in Linux's kernel (eBPF): written in C in `programs/`, compiled when this crate is built and kept in
//! it, loaded by [`aya`].
//!
//! Where there was no clang at build time there are no programs, and who asks for one is told so.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

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
        match unifl() {
            Ok(code) => assert_eq!(code.first_chunk(), Some(b"\x7fELF")),
            Err(why) => println!("skipped: {why}"),
        }
    }
}
