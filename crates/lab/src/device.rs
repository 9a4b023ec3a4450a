//! Makes the hosts' devices; failures are errors of the lab.

use std::io;

use thalweg_tun::{Device, Hardware};

use crate::{Error, Result};

/// Makes a device called `name` in the calling thread's namespace: TAP with a hardware address, TUN without.
pub(crate) fn make(name: &str, hardware: Option<Hardware>) -> Result<Device> {
    let made = match hardware {
        None => Device::new(name),
        Some(hardware) => Device::tap(name, hardware),
    };
    made.map_err(|e| explain(&e))
}

/// Hardware address of the host with this index. It also makes the address of the host's RDMA device unique.
pub(crate) fn hardware(host: usize) -> Hardware {
    let [_, _, high, low] = (host as u32 + 1).to_be_bytes();
    // The prefix 2 marks a locally administered address.
    [2, 0, 0, 1, high, low]
}

fn explain(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidInput => crate::spec::impossible(error.to_string()),
        _ => Error::io("lab", "TUN", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Namespace};

    /// Runs `work` in a new namespace, or prints why there can be none.
    fn inside(work: impl FnOnce() + Send) {
        if let Err(error) = Namespace::with(|| {
            work();
            Ok(())
        }) {
            println!("skipped: {error}");
        }
    }

    #[test]
    fn a_name_that_is_taken_is_refused() {
        inside(|| {
            let first = match make("one", None) {
                Err(error) if error.kind() == ErrorKind::Unsupported => return println!("skipped: {error}"),
                made => made.unwrap(),
            };
            let error = make("one", None).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InUse);
            assert!(error.to_string().contains("\"one\""), "{error}");
            drop(first);
            make("one", None).unwrap();
        });
    }

    #[test]
    fn a_name_that_no_device_can_have_is_refused() {
        let error = make("a-name-that-is-too-long", None).err().unwrap();
        assert!(
            [ErrorKind::Config, ErrorKind::Unsupported, ErrorKind::Permission].contains(&error.kind()),
            "{error}"
        );
    }

    #[test]
    fn a_machine_without_tun_says_so() {
        let error = explain(&Device::by("/dev/net/no-such-tun", "eth0", None).err().unwrap());
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("no-such-tun") && error.to_string().contains("emulator"),
            "{error}"
        );
    }
}
