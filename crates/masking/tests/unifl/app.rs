//! The application: records every byte and hole, and checks them against the stream.

use thalweg_masking::{Agreed, Ended, Event, FlowId, What};
use thalweg_wire::{Range, Ranges};

use super::wire::byte;

/// What an application has seen of one flow.
#[derive(Debug, Default)]
pub struct App {
    pub flow: Option<FlowId>,
    pub agreed: Option<Agreed>,
    pub got: Ranges,
    /// Holes that were reported, whether they were filled later or not.
    pub holes: Ranges,
    pub late: u64,
    pub finished: Option<u64>,
    pub ended: Option<Ended>,
}

impl App {
    pub fn see(&mut self, event: Event<'_>) {
        assert!(self.ended.is_none(), "after its last event: {event:?}");
        self.flow = Some(event.flow);
        match event.what {
            What::Connected(agreed) => assert!(self.agreed.replace(agreed).is_none(), "connected twice"),
            What::Bytes { offset, bytes, late } => self.bytes(offset, bytes, late),
            What::Hole(hole) => {
                assert!(!hole.is_empty() && self.finished.is_none_or(|end| hole.end <= end));
                assert_eq!(self.got.missing_in(hole), [hole], "a hole where bytes came");
                assert_eq!(self.holes.insert(hole), [hole], "a hole twice");
            }
            What::Finished(length) => {
                assert!(self.finished.replace(length).is_none(), "finished twice");
                self.check(length);
            }
            What::Ended(ended) => self.ended = Some(ended),
        }
    }

    fn bytes(&mut self, offset: u64, bytes: &[u8], late: bool) {
        assert!(self.agreed.is_some() && !bytes.is_empty());
        let range = Range::new(offset, offset + bytes.len() as u64);
        assert!((offset..).zip(bytes).all(|(at, &b)| b == byte(at)), "a wrong byte in {range:?}");
        assert_eq!(self.got.insert(range), [range], "bytes twice");
        let reported = self.holes.covers(range);
        assert_eq!(reported, late, "{range:?} fills a hole that was reported: {reported}");
        self.late += if late { range.len() } else { 0 };
    }

    /// Checks that bytes and holes together make up the stream.
    pub fn check(&self, length: u64) {
        let mut all = self.got.clone();
        self.holes.iter().for_each(|hole| drop(all.insert(hole)));
        assert!(
            length == 0 || all.covers(Range::new(0, length)),
            "neither come nor a hole: {:?}",
            all.holes(length)
        );
        assert_eq!(all.bytes(), length);
    }

    /// Number of bytes that are still holes at the end.
    pub fn missing(&self) -> u64 {
        self.holes.iter().flat_map(|hole| self.got.missing_in(hole)).map(Range::len).sum()
    }
}
