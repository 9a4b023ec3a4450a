//! Reads a connection of the kernel, and reinserts the holes that a program beside the kernel has masked.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use thalweg_wire::FrameHeader;

use crate::inlet::Plain;
use crate::line::{Hole, Holes, Taken};
use crate::preamble::PREAMBLE_BYTES;
use thalweg_sockets::socket::Socket;

pub(crate) struct MaskedSocket {
    plain: Plain,
    holes: Arc<dyn Holes>,
    weave: Weave,
}

/// Merges the bytes that were read with the holes. It does no IO.
#[derive(Debug, Default)]
struct Weave {
    /// Number of the kernel's bytes that were returned so far.
    place: u64,
    /// Number of bytes and missing bytes that were returned so far: the offset in the stream.
    offset: u64,
    /// Holes that were not returned yet, in rising order.
    holes: VecDeque<Hole>,
    /// Bytes that were read together with bytes before a hole, and wait behind it.
    rest: VecDeque<u8>,
    /// Bytes copied through `rest` since they were last asked for.
    copied: u64,
}

impl MaskedSocket {
    pub(crate) fn new(socket: Socket, holes: Arc<dyn Holes>) -> Self {
        // The preamble has already been read.
        let read = PREAMBLE_BYTES as u64;
        let weave = Weave { place: read, offset: read, ..Weave::default() };
        Self { plain: Plain::new(socket), holes, weave }
    }

    /// Returns some bytes or a hole; 0 bytes at the end. The future may be dropped and the call repeated.
    pub(crate) async fn read(&mut self, buffer: &mut [u8]) -> io::Result<Taken> {
        loop {
            if let Some(taken) = self.weave.take(buffer) {
                return Ok(taken);
            }
            let room = self.weave.room(buffer.len());
            let got = self.plain.read(&mut buffer[..room], 1).await?;
            let fresh = self.holes.take()?;
            if let Some(taken) = self.weave.received(&buffer[..got], fresh) {
                return Ok(taken);
            }
        }
    }

    /// Reports the header of a frame that has been read.
    pub(crate) fn header(&self, header: &FrameHeader) {
        self.holes.header(self.weave.offset, header);
    }

    /// Bytes copied since the last call.
    pub(crate) fn copied(&mut self) -> u64 {
        std::mem::take(&mut self.weave.copied)
    }
}

impl Weave {
    /// Returns what is next among the known holes and the kept bytes. `None` if nothing is known.
    fn take(&mut self, buffer: &mut [u8]) -> Option<Taken> {
        if buffer.is_empty() {
            return Some(Taken::Bytes(0));
        }
        if let Some(hole) = self.holes.front_mut().filter(|hole| hole.place <= self.place) {
            let length = hole.length.min(buffer.len() as u64);
            hole.length -= length;
            if hole.length == 0 {
                self.holes.pop_front();
            }
            self.offset += length;
            return Some(Taken::Hole(length as usize));
        }
        if self.rest.is_empty() {
            return None;
        }
        let count = self.room(buffer.len()).min(self.rest.len());
        for (to, from) in buffer.iter_mut().zip(self.rest.drain(..count)) {
            *to = from;
        }
        self.copied += count as u64;
        Some(self.give(count))
    }

    /// Number of bytes before the next hole, at most `place`.
    fn room(&self, place: usize) -> usize {
        let until = self.holes.front().map_or(u64::MAX, |hole| hole.place - self.place);
        usize::try_from(until).unwrap_or(usize::MAX).min(place)
    }

    /// Adds bytes that were read, and new holes, which may lie among these bytes. Keeps the bytes behind the
    /// first hole. Returns the bytes before it, or `None` if the hole comes first.
    fn received(&mut self, bytes: &[u8], fresh: Vec<Hole>) -> Option<Taken> {
        self.holes.extend(fresh);
        let count = self.room(bytes.len());
        self.rest.extend(&bytes[count..]);
        self.copied += (bytes.len() - count) as u64;
        let hole_first = count == 0 && self.holes.front().is_some_and(|hole| hole.place <= self.place);
        (!hole_first).then(|| self.give(count))
    }

    fn give(&mut self, count: usize) -> Taken {
        self.place += count as u64;
        self.offset += count as u64;
        Taken::Bytes(count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Takes everything from `weave`. In `stream`, a byte is `Some` and a missing byte is `None`.
    fn drain(weave: &mut Weave, buffer: &mut [u8], stream: &mut Vec<Option<u8>>) {
        while let Some(taken) = weave.take(buffer) {
            put(taken, buffer, stream);
        }
    }

    fn put(taken: Taken, buffer: &[u8], stream: &mut Vec<Option<u8>>) {
        match taken {
            Taken::Bytes(count) => stream.extend(buffer[..count].iter().copied().map(Some)),
            Taken::Hole(count) => stream.extend(std::iter::repeat_n(None, count)),
        }
    }

    #[test]
    fn a_hole_in_front_of_the_end_is_told() {
        let mut weave = Weave::default();
        let mut buffer = [0; 10];
        assert_eq!(weave.received(&[1, 2], Vec::new()), Some(Taken::Bytes(2)));
        assert_eq!(weave.received(&[], vec![Hole { place: 2, length: 12 }]), None);
        assert_eq!(weave.take(&mut buffer), Some(Taken::Hole(10)));
        assert_eq!(weave.take(&mut buffer), Some(Taken::Hole(2)));
        assert_eq!(weave.take(&mut buffer), None);
        assert_eq!(weave.received(&[], Vec::new()), Some(Taken::Bytes(0)));
        assert_eq!(weave.offset, 14);
    }

    proptest! {
        /// Cuts a stream into pieces, some of which are holes. A hole is reported before the bytes behind it
        /// are read, or together with them. The merged result must equal the stream.
        #[test]
        fn holes_are_put_back_where_they_were(
            pieces in prop::collection::vec((1..40_u64, any::<bool>(), any::<bool>()), 1..40),
            sizes in prop::collection::vec(1..50_usize, 1..40),
        ) {
            let (mut expected, mut bytes, mut holes) = (Vec::new(), Vec::new(), VecDeque::new());
            for (length, hole, early) in pieces {
                if hole {
                    holes.push_back((Hole { place: bytes.len() as u64, length }, early));
                    expected.extend(std::iter::repeat_n(None, length as usize));
                } else {
                    for _ in 0..length {
                        bytes.push((expected.len() % 251) as u8);
                        expected.push(Some((expected.len() % 251) as u8));
                    }
                }
            }
            let (mut weave, mut stream, mut read) = (Weave::default(), Vec::new(), 0);
            for at in 0.. {
                let size = sizes[at % sizes.len()];
                let mut buffer = vec![0; size];
                drain(&mut weave, &mut buffer, &mut stream);
                let count = weave.room(size).min(bytes.len() - read);
                buffer[..count].copy_from_slice(&bytes[read..read + count]);
                read += count;
                // The hole is reported at the latest when the byte behind it has been read, or the end.
                let is_reported = |hole: &(Hole, bool)| {
                    hole.0.place < read as u64 || (hole.0.place == read as u64 && (hole.1 || count == 0))
                };
                let mut fresh = Vec::new();
                while holes.front().is_some_and(is_reported) {
                    fresh.extend(holes.pop_front().map(|hole| hole.0));
                }
                let nothing = fresh.is_empty();
                if let Some(taken) = weave.received(&buffer[..count], fresh) {
                    put(taken, &buffer, &mut stream);
                    if count == 0 && nothing && taken == Taken::Bytes(0) {
                        break;
                    }
                }
            }
            prop_assert_eq!(&stream, &expected);
            prop_assert_eq!(weave.offset, expected.len() as u64);
        }
    }
}
