//! What a listener knows of its members: by which connections they are read and written, who has gone.

use std::collections::{HashMap, VecDeque};

use thalweg_messages::{Event, Mailbox, MemberId};
use thalweg_transport::Error;

use crate::ffi::MessagePart;

/// Messages read before what happened to connections is told, if there is no end to them.
pub(crate) const IN_A_ROW: u32 = 256;

/// What a listener knows of its members' connections.
#[derive(Default)]
pub(crate) struct Peers {
    /// Whose the connections are that messages come over, by their descriptors.
    reading: HashMap<i32, MemberId>,
    pub known: HashMap<MemberId, Known>,
    leaving: VecDeque<MemberId>,
    pub refused: VecDeque<Error>,
    pub row: u32,
}

#[derive(Default)]
pub(crate) struct Known {
    pub address: String,
    /// The connection that it is written to.
    pub writing: Option<i32>,
}

impl Peers {
    /// Whether a message is over the connection that the member's have come over before.
    pub(crate) fn knows(&self, member: MemberId, message: &MessagePart) -> bool {
        message.source().is_some_and(|descriptor| self.reading.get(&descriptor) == Some(&member))
    }

    /// The connections that the member's messages come over.
    pub(crate) fn reading(&self, member: MemberId) -> impl Iterator<Item = i32> + '_ {
        self.reading.iter().filter(move |(_, id)| **id == member).map(|(descriptor, _)| *descriptor)
    }

    pub(crate) fn heard(&mut self, member: MemberId, message: &MessagePart) {
        if self.leaving.contains(&member) {
            return; // what was sent before its connection ended
        }
        if let Some(descriptor) = message.source() {
            if self.reading.insert(descriptor, member) != Some(member) {
                let known = self.known.entry(member).or_default();
                known.address = message.peer_address().unwrap_or_default();
                known.writing = known.writing.or(Some(descriptor));
            }
        }
    }

    pub(crate) fn wrote_to(&mut self, member: MemberId, descriptor: Option<i32>) {
        // Somebody who subscribes and says no more is kept until his connection ends.
        self.known.entry(member).or_default().writing = descriptor;
    }

    pub(crate) fn ended(&mut self, descriptor: i32, reading: bool) {
        if reading {
            self.leaving.extend(self.reading.remove(&descriptor));
        }
        for known in self.known.values_mut().filter(|known| known.writing == Some(descriptor)) {
            known.writing = None;
        }
        self.known.retain(|_, known| known.writing.is_some() || !known.address.is_empty());
    }

    /// A member can no longer be written to.
    pub(crate) fn left(&mut self, member: MemberId) {
        self.leaving.push_back(member);
    }

    /// Who has gone, or was refused.
    pub(crate) fn news(&mut self) -> Option<Event> {
        self.row = 0;
        if let Some(member) = self.leaving.pop_front() {
            self.known.remove(&member);
            let why = "its connection has ended".into();
            return Some(Event::Gone { mailbox: Mailbox::Member(member), why });
        }
        self.refused.pop_front().map(Event::Refused)
    }
}
