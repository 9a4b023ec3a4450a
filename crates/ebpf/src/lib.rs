//! Programs that run in Linux's kernel (eBPF), loaded by [`aya`]. They are written in C (`programs/`). Their
//! object code (`objects/`) is under version control, so that no build needs clang. `make ebpf` compiles it
//! anew, and `tests/test_ebpf.py` checks that it was compiled from these sources.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

use std::error::Error;
use std::io;

pub use aya;

/// Object code of unifl's programs, for [`aya::Ebpf::load`].
pub fn unifl() -> &'static [u8] {
    aya::include_bytes_aligned!("../objects/unifl.o")
}

/// Object code of the program that routes notes between the processes of a node, for [`aya::Ebpf::load`].
pub fn route() -> &'static [u8] {
    aya::include_bytes_aligned!("../objects/route.o")
}

/// Describes an error of [`aya`] with its causes, and says what to do, if that is known.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_denied_has_a_hint() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(explain(&denied).contains("CAP_BPF"));
        assert!(!explain(&io::Error::from(io::ErrorKind::NotFound)).contains("CAP_BPF"));
    }
}
