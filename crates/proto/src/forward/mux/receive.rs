//! Handles messages and chunks from the other end of a link.

use thalweg_wire::control::{Control, Forward};
use thalweg_wire::forward::{position_of, stream_of, MOST_STREAMS, MOST_WINDOW};
use thalweg_wire::Range;

use super::Mux;
use crate::forward::terms::ForwardEvent;
use crate::Time;

impl Mux {
    /// Handles a message.
    ///
    /// # Errors
    /// Why the link must end.
    pub fn control(&mut self, now: Time, message: Control) -> Result<(), String> {
        self.live.message_received(now);
        match message {
            Control::Forward(message) => self.forward(message)?,
            Control::Ping { clock, .. } => self.messages.push_back(Control::Pong { clock }),
            Control::Pong { .. } => {}
            Control::Bye { reason } => return Err(format!("the other end has gone: {reason}")),
            _ => return Err("it says what does not belong on a link that forwards".into()),
        }
        self.check()
    }

    fn forward(&mut self, message: Forward) -> Result<(), String> {
        match message {
            Forward::Open { stream, window } => self.opened(stream, window),
            Forward::Ready { .. } => return Err("it says twice that it is ready".into()),
            Forward::Reset { stream, reason } => {
                if self.streams.remove(&stream).is_some() {
                    self.events.push_back(ForwardEvent::Reset(stream, reason));
                }
            }
            Forward::Credit { stream, received, limit } => {
                let Some(known) = self.streams.get_mut(&stream) else { return Ok(()) };
                known.outlet.credit(received, limit)?;
                if received == 0 {
                    known.inlet.sender_keeps(limit); // nothing has arrived there, so this is its window
                }
                if known.outlet.room() > 0 {
                    self.events.push_back(ForwardEvent::Writable(stream));
                }
                self.settle(stream);
            }
            Forward::Sent { stream, end } => self.sent_to_us(stream, end)?,
            Forward::Missing { stream, wanted } => {
                let Some(known) = self.streams.get_mut(&stream) else { return Ok(()) };
                known.outlet.missing(&wanted)?;
                self.queue(stream);
            }
            Forward::End { stream, end } => {
                let Some(known) = self.streams.get_mut(&stream) else { return Ok(()) };
                known.inlet.end(end)?;
                self.events.push_back(ForwardEvent::Readable(stream));
                self.grant(stream);
            }
        }
        Ok(())
    }

    fn opened(&mut self, stream: u32, window: u64) {
        let why = if stream >= MOST_STREAMS || self.streams.contains_key(&stream) {
            "that number is taken"
        } else if !self.has_place() {
            "the far end has as many connections as it may have; raise its --connections"
        } else {
            self.add(stream, window.min(MOST_WINDOW), true);
            if let Some(known) = self.streams.get_mut(&stream) {
                known.inlet.sender_keeps(window);
            }
            self.events.push_back(ForwardEvent::Opened(stream));
            let limit = self.config.window;
            return self.say(Forward::Credit { stream, received: 0, limit });
        };
        self.say(Forward::Reset { stream, reason: why.into() });
    }

    fn sent_to_us(&mut self, stream: u32, end: u64) -> Result<(), String> {
        let Some(known) = self.streams.get_mut(&stream) else { return Ok(()) };
        known.inlet.wants(Range::new(end, end))?;
        let wanted = known.inlet.missing(end);
        if !wanted.is_empty() {
            self.say(Forward::Missing { stream, wanted });
        }
        Ok(())
    }

    fn place(&self, at: u64, length: u32) -> Option<(u32, Range)> {
        let stream = stream_of(at);
        let known = self.streams.get(&stream)?;
        let start = position_of(at, known.inlet.received())?;
        Some((stream, Range::new(start, start.saturating_add(length.into()))))
    }

    /// Whether a chunk is needed: it belongs to a stream and brings new bytes.
    pub fn wants(&mut self, at: u64, length: u32) -> bool {
        let Some((stream, range)) = self.place(at, length) else { return false };
        match self.streams.get(&stream).map(|known| known.inlet.wants(range)) {
            Some(Ok(wanted)) => wanted,
            Some(Err(why)) => {
                self.blame(why);
                false
            }
            None => false,
        }
    }

    /// Stores a chunk that has arrived.
    pub fn chunk(&mut self, at: u64, bytes: Vec<u8>) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if !self.wants(at, length) {
            return;
        }
        let Some((stream, range)) = self.place(at, length) else { return };
        let Some(known) = self.streams.get_mut(&stream) else { return };
        if known.inlet.store(range.start, bytes) {
            self.events.push_back(ForwardEvent::Readable(stream));
            self.grant(stream);
        }
    }

    /// Handles a damaged chunk. On a link that loses chunks, it counts as lost and is sent again.
    pub fn damaged(&mut self) {
        if self.config.reliable {
            self.blame("a chunk came damaged, and nothing sends it again");
        }
    }
}
