//! TUN devices, with a lab's errors.

use std::io;

use thalweg_tun::Device;

use crate::{Error, Result};

/// Makes a device called `name` in the calling thread's namespace.
pub(crate) fn make(name: &str) -> Result<Device> {
    Device::new(name).map_err(|e| explain(&e))
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

    /// Does something in a namespace of its own, or says why that cannot be.
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
            let first = match make("one") {
                Err(error) if error.kind() == ErrorKind::Unsupported => return println!("skipped: {error}"),
                made => made.unwrap(),
            };
            let error = make("one").err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InUse);
            assert!(error.to_string().contains("\"one\""), "{error}");
            drop(first);
            make("one").unwrap();
        });
    }

    #[test]
    fn a_name_that_no_device_can_have_is_refused() {
        let error = make("a-name-that-is-too-long").err().unwrap();
        assert!(
            [ErrorKind::Config, ErrorKind::Unsupported, ErrorKind::Permission].contains(&error.kind()),
            "{error}"
        );
    }

    #[test]
    fn a_machine_without_tun_says_so() {
        let error = explain(&Device::by("/dev/net/no-such-tun", "eth0").err().unwrap());
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("no-such-tun") && error.to_string().contains("emulator"),
            "{error}"
        );
    }
}
