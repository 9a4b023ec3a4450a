//! Tests with the machine's own RDMA devices, if it has any.

use thalweg_verbs::{system, Error};

/// If something is missing, the error says what to do. Nothing crashes.
#[test]
fn what_is_missing_is_said_with_the_hint() {
    match system::devices() {
        Ok(devices) => println!("devices: {devices:?}"),
        Err(error) => {
            println!("none: {error}");
            let hint = match &error {
                Error::NoLibrary(_) => "apt install",
                Error::NoDevice(_) => "rdma link",
                Error::Locked(_) | Error::Refused(_) => "",
            };
            assert!(!hint.is_empty() && error.to_string().contains(hint), "{error:?}");
            assert!(system::device(None).is_err());
        }
    }
}
