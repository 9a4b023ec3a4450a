//! The worker's end of the connection over which updates and sums are copied, for data planes without the
//! pool.

use std::net::TcpStream;
use std::os::fd::OwnedFd;

use thalweg_arena::{Access, Arena};
use thalweg_wire::Range;

use crate::copying;
use crate::setup::Setup;

/// Receives copies of updates and sends copies of sums.
pub(super) struct CopyingPlane {
    stream: TcpStream,
    /// The worker's own sums, mapped for reading. A worker that sends copies has memory of its own for them.
    sums: Arena,
    /// Buffer for the copy of the current update.
    update: Vec<u8>,
}

impl CopyingPlane {
    pub fn new(end: OwnedFd, sums: &OwnedFd, setup: &Setup) -> Result<Self, String> {
        let sums = sums.try_clone().map_err(|e| e.to_string())?;
        let sums = Arena::of_fd(sums, setup.memory_bytes, Access::Read).map_err(|e| e.to_string())?;
        Ok(Self { stream: TcpStream::from(end), sums, update: vec![0; setup.layout.bytes() as usize] })
    }

    /// Receives the next update. The slice is valid until the next call.
    pub fn receive(&mut self) -> Result<&[u8], String> {
        copying::receive(&mut self.stream, &mut self.update).map_err(|e| e.to_string())?;
        Ok(&self.update)
    }

    /// Sends the sums of this slot (0 or 1) to the node.
    pub fn send(&mut self, slot: usize) -> Result<(), String> {
        let half = self.sums.len() / 2;
        let start = slot as u64 * half;
        let cells = self.sums.lend(Range::new(start, start + half)).map_err(|e| e.to_string())?;
        copying::send(&mut self.stream, &cells).map_err(|e| e.to_string())
    }
}
