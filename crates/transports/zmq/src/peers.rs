//! A listener's table of members: their connections, and which members are gone.

use std::collections::{HashMap, VecDeque};

use thalweg_messages::{Event, Mailbox, MemberId};
use thalweg_transport::Error;

use crate::ffi::MessagePart;

/// Maximum number of messages returned in a row before connections' events are looked at.
pub(crate) const IN_A_ROW: u32 = 256;

/// The members' connections, and events to report.
#[derive(Default)]
pub(crate) struct Peers {
    /// The member that sends over each connection, by descriptor.
    reading: HashMap<i32, MemberId>,
    pub known: HashMap<MemberId, Known>,
    leaving: VecDeque<MemberId>,
    pub refused: VecDeque<Error>,
    /// Messages returned since connections' events were last looked at.
    pub row: u32,
}

/// A member that the listener knows.
#[derive(Default)]
pub(crate) struct Known {
    pub address: String,
    /// The descriptor of the connection over which the listener writes to the member.
    pub writing: Option<i32>,
}

impl Peers {
    /// Whether the message came over a connection that is already known as the member's connection.
    pub(crate) fn knows(&self, member: MemberId, message: &MessagePart) -> bool {
        message.source().is_some_and(|descriptor| self.reading.get(&descriptor) == Some(&member))
    }

    /// The connections over which the member sends.
    pub(crate) fn reading(&self, member: MemberId) -> impl Iterator<Item = i32> + '_ {
        self.reading.iter().filter(move |(_, id)| **id == member).map(|(descriptor, _)| *descriptor)
    }

    /// Notes over which connection a member's message came.
    pub(crate) fn note_message(&mut self, member: MemberId, message: &MessagePart) {
        if self.leaving.contains(&member) {
            // Ignore the message: its connection has ended in the meantime.
            return;
        }
        if let Some(descriptor) = message.source() {
            if self.reading.insert(descriptor, member) != Some(member) {
                let known = self.known.entry(member).or_default();
                known.address = message.peer_address().unwrap_or_default();
                known.writing = known.writing.or(Some(descriptor));
            }
        }
    }

    /// Notes over which connection the listener writes to a member.
    pub(crate) fn wrote_to(&mut self, member: MemberId, descriptor: Option<i32>) {
        // A peer that only subscribes stays in the table until its connection ends.
        self.known.entry(member).or_default().writing = descriptor;
    }

    /// Notes that a connection has ended; `reading` says that the member sent over it.
    pub(crate) fn ended(&mut self, descriptor: i32, reading: bool) {
        if reading {
            self.leaving.extend(self.reading.remove(&descriptor));
        }
        for known in self.known.values_mut().filter(|known| known.writing == Some(descriptor)) {
            known.writing = None;
        }
        self.known.retain(|_, known| known.writing.is_some() || !known.address.is_empty());
    }

    /// Notes that the listener cannot write to a member any more.
    pub(crate) fn left(&mut self, member: MemberId) {
        self.leaving.push_back(member);
    }

    /// The next event to report: a member is gone, or a connection was refused.
    pub(crate) fn news(&mut self) -> Option<Event> {
        self.row = 0;
        if let Some(member) = self.leaving.pop_front() {
            self.known.remove(&member);
            let why = "its connection has ended".into();
            return Some(Event::Departed { mailbox: Mailbox::Member(member), why });
        }
        self.refused.pop_front().map(Event::Refused)
    }
}
