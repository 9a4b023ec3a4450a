//! Encrypted links, for the layer that derives its keys from theirs.
#![allow(dead_code, clippy::unwrap_used)] // each file uses a part; a panic is how tests report

use thalweg_transport::Options;

#[path = "../../../transports/tcp/tests/common/trust.rs"]
mod certificates;
#[path = "../../../transports/tcp/tests/common/lossy.rs"]
pub mod lossy;
pub use certificates::Trust;

/// Small socket buffers, so that a peer that does not receive soon blocks its sender.
pub fn plain() -> Options {
    let buffer = Some(256 << 10);
    Options { send_buffer: buffer, receive_buffer: buffer, ..Options::default() }
}
