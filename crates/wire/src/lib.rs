//! The formats of bytes on the wire: tensor layouts, frames, control messages, byte ranges, checksums.
//!
//! Nothing here opens a socket, reads a clock, or allocates memory by a length that it has not checked. So
//! the same code runs in every transport, under a fuzzer and with a virtual network.
#![forbid(unsafe_code)]

pub mod control;
mod difference;
mod dtype;
mod error;
pub mod forward;
mod frame;
mod layout;
pub mod limits;
mod parcel;
mod ranges;
mod spread;
pub mod text;
mod tolerance;
pub mod tree;

pub use difference::{Difference, TensorSpec};
pub use dtype::Dtype;
pub use error::WireError;
pub use frame::{
    checksum, checksum_after, ChunkHeader, FrameHeader, Kind, HEADER_BYTES, MAX_CHUNK, MAX_CONTROL, MAX_HELLO,
};
pub use layout::{Layout, LayoutHash, Tensor, ALIGN, MAX_TENSORS};
pub use ranges::{Range, Ranges};
pub use spread::Spread;
pub use tolerance::{Allowance, Limit, Tolerance, WHOLE};
