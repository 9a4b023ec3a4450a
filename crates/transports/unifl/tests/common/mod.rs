//! A network of the test's own, as far as this machine can have one.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report
#![allow(dead_code)] // Each test file uses its part.

use std::path::Path;

use serde_json::{json, Value};
use thalweg_lab::{enter, ErrorKind, Lab, Spec};

/// Hosts a and b with a link between them; or why there are none here.
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

/// The same over IPv6, as URLs have it.
pub const SERVER_V6: &str = "[fd77::2]";

/// Has the calling thread's host forward IPv6, without which no packets can be led anywhere.
pub fn forward_ipv6() {
    std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
}

/// Moves the calling thread to a host.
pub fn go_to(lab: &Lab, host: &str) {
    enter(Path::new(lab.hosts()[host]["namespace"].as_str().unwrap()), None).unwrap();
}
