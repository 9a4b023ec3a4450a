//! An emulated network for a single test, as far as this machine can have one.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report
#![allow(dead_code)] // Each test file uses its part.

use std::path::Path;

use serde_json::{json, Value};
use thalweg_lab::{enter, ErrorKind, Lab, Spec};
use thalweg_transport::{Fraction, Options, Settings, Value as Setting};

#[path = "../../../tcp/tests/common/trust.rs"]
mod certificates;
#[allow(unused_imports)]
pub use certificates::Trust;

/// Small buffers, so that a peer that does not receive blocks its sender. No byte of an update may be lost.
pub fn plain() -> Options {
    let own = Settings::default().with("budget", Setting::Share(Fraction::millionths(0)));
    let (send_buffer, receive_buffer) = (Some(64 << 10), Some(256 << 10));
    Options { own, send_buffer, receive_buffer, ..Options::default() }
}

pub mod sending;

/// Two hosts, a and b, with a link between them. The error says why there are none.
pub fn lab(to_server: Value, to_client: Value) -> Result<Lab, String> {
    let link = json!({"name": "link", "a": "a", "b": "b", "ab": to_server, "ba": to_client});
    let spec = json!({"seed": 5, "hosts": [{"name": "a"}, {"name": "b"}], "links": [link]});
    match Lab::new(&Spec::parse(&spec.to_string()).unwrap()) {
        Ok(lab) => Ok(lab),
        Err(error) if matches!(error.kind(), ErrorKind::Permission | ErrorKind::Unsupported) => {
            Err(error.to_string())
        }
        Err(error) => panic!("{error}"),
    }
}

/// The address of host b.
pub const SERVER: &str = "10.77.0.2";

/// The IPv6 address of host b, as URLs have it.
pub const SERVER_V6: &str = "[fd77::2]";

/// Lets the calling thread's host forward IPv6. Without that the endpoint gets no IPv6 packets.
pub fn forward_ipv6() {
    std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
}

/// Moves the calling thread to a host.
pub fn go_to(lab: &Lab, host: &str) {
    enter(Path::new(lab.hosts()[host]["namespace"].as_str().unwrap()), None).unwrap();
}
