//! The traits that a message protocol implements, so that links can run over it.
//!
//! A job has one listener and several members. Each opens a carrier of its own with [`Post::open`] and reads
//! one stream of messages. The listener reads its own mailbox. A member reads its own mailbox and the
//! group's, in the order of publication.
//!
//! | | ZMTP | MQTT | AMQP |
//! |---|---|---|---|
//! | [`Mailbox::Listener`] | the ROUTER | a topic | a queue, by the default exchange |
//! | [`Mailbox::Member`] | an identity | a topic each | a queue each, by the default exchange |
//! | [`Mailbox::Group`] | a PUB's topic; none with ROUTER | a topic for all | a fan-out exchange |
//! | [`Nature::lossy`] | no | QoS 0 | no |
//! | [`Carrier::flush`] | nothing to ask | PUBACK, PUBCOMP | publisher confirms |
//! | [`Letter::receipt`] | none | PUBACK, PUBREC | the acknowledgement, within the prefetch |
//! | [`Carrier::publish_kept`] | no | a retained message, a topic each | no |
//! | [`Event::Departed`] | the connection's end | last will | a mandatory message that comes back |

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use ring::rand::{SecureRandom, SystemRandom};
use thalweg_transport::{Address, Capabilities, Error, ErrorKind, Options, Origin, Peer, Result, Setting};

/// A message protocol. It opens carriers.
#[async_trait]
pub trait Post: Send + Sync + 'static {
    /// The name of the transport and the scheme of its addresses.
    fn name(&self) -> &'static str;

    /// The capabilities of links over this protocol. `fan_out` says that [`Nature::group`] is possible; a
    /// link reports what its carrier really has. `max_chunk` leaves room for [`crate::HEAD_BYTES`] in the
    /// largest message.
    fn capabilities(&self) -> Capabilities;

    /// The settings of this protocol alone, in [`Options::own`].
    fn settings(&self) -> &'static [Setting] {
        &[]
    }

    /// Opens a carrier: connects, logs in and creates its mailboxes. Messages published to them afterwards
    /// arrive. Waits at most [`Options::connect_timeout`].
    ///
    /// # Errors
    /// As `Transport::listen` and `Transport::connect`. [`ErrorKind::InUse`] if another listener has the
    /// address and the protocol can tell; [`ErrorKind::Unreachable`] if nobody, or no broker, is at the
    /// address; [`ErrorKind::Security`] for a refused login or certificate; [`ErrorKind::Unsupported`] for an
    /// option that the protocol does not have.
    async fn open(&self, side: Side, address: &Address, options: &Options) -> Result<Arc<dyn Carrier>>;
}

/// Who opens a carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The listener, which reads [`Mailbox::Listener`].
    Listener,
    /// A member, which reads its own [`Mailbox::Member`], and [`Mailbox::Group`] if there is one.
    Member(MemberId),
}

/// One party's connection to the protocol's network, or to its broker. Several tasks call the methods at
/// once, but only one calls [`Carrier::next`].
#[async_trait]
pub trait Carrier: Send + Sync {
    /// The properties of this carrier. A broker may have set its limits while it was opened.
    fn nature(&self) -> Nature;

    /// The address at which members find the listener, with the port that the system chose. With a broker,
    /// the broker's address.
    fn address(&self) -> Address;

    /// Publishes a message. Waits while the carrier's own, bounded buffer is full. Messages from one carrier
    /// to one reader keep their order, through whichever of the reader's mailboxes they go. Dropping the
    /// future publishes the message whole or not at all. The carrier copies what it keeps.
    ///
    /// Returns the bytes of the message on the wire, as exactly as the protocol can tell.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] with the reason, if the carrier has ended. An absent reader is no error: the
    /// message is lost, and [`Event::Departed`] reports the reader's end if the protocol can.
    async fn publish(&self, to: Mailbox, message: Message<'_>) -> Result<u64>;

    /// Whether [`Carrier::publish_shared`] keeps a reference to the body. If so, all sends of a chunk share
    /// one copy.
    fn shares(&self) -> bool {
        false
    }

    /// The same as [`Carrier::publish`], for a chunk's body that other sends share.
    ///
    /// # Errors
    /// The same as [`Carrier::publish`].
    async fn publish_shared(&self, to: Mailbox, head: &[u8], body: Arc<Vec<u8>>) -> Result<u64> {
        self.publish(to, Message { head, body: &body, care: Care::Bulk }).await
    }

    /// Whether [`Carrier::publish_kept`] retains messages. Only asked of the listener's carrier.
    fn keeps(&self) -> bool {
        false
    }

    /// Publishes to the group, and has the broker retain the message. It replaces the message retained at the
    /// same `place`. The broker retains it until the listener's carrier is closed. A member that joins later
    /// receives it, before what is published to that member if the protocol can do so.
    ///
    /// # Errors
    /// The same as [`Carrier::publish`].
    async fn publish_kept(&self, _place: u64, message: Message<'_>) -> Result<u64> {
        self.publish(Mailbox::Group, message).await
    }

    /// Waits until all messages that were published so far have left this carrier: with a broker, until the
    /// broker has confirmed them.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] with the reason.
    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Waits for the next event. There is one caller at a time, and it handles each event at once. Dropping
    /// the future loses nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] with the reason, when the carrier has ended: the connection broke, the broker
    /// went away, or [`Carrier::close`] was called. A carrier does not reconnect; its owner opens another
    /// one.
    async fn next(&self) -> Result<Event>;

    /// The protocol's own knowledge about the reader of `mailbox` (the listener or a member): an address for
    /// messages to people, the name in a certificate. [`Peer::binding`] stays empty.
    fn peer(&self, mailbox: Mailbox) -> Peer {
        Peer { address: format!("{} {mailbox}", self.address()), ..Peer::default() }
    }

    /// The kernel's measurements of the connection to `mailbox`; with a broker, of the connection to the
    /// broker.
    fn network(&self, _mailbox: Mailbox) -> Network {
        Network::default()
    }

    /// Why published messages have to wait now, as a text for people: an alarm of the broker, say. `None` if
    /// they do not.
    fn held(&self) -> Option<String> {
        None
    }

    /// The address to which the admission queue counts an unauthenticated member, if the protocol knows it.
    fn origin(&self, _member: MemberId) -> Origin {
        Origin::Unknown
    }

    /// The session has admitted a member. Its connections leave the admission queue.
    fn admit(&self, _member: MemberId) {}

    /// The link with a member has ended. The carrier may drop what it keeps for that member.
    fn forget(&self, _member: MemberId) {}

    /// Ends the carrier. Messages that were published before this call still go out, as far as the protocol
    /// can promise. Waiting calls fail. Idempotent. Dropping a carrier ends it too.
    async fn close(&self);
}

/// The properties of a carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nature {
    /// Maximum number of bytes of a message, head and body together.
    pub max_message: usize,
    /// Whether the group has a mailbox: a message to it is published once and reaches all members.
    pub group: bool,
    /// Whether single messages may get lost while the carrier goes on. If a carrier that is not lossy loses a
    /// message (a broker drops from a full queue), the receiver notices it by its number, and the link
    /// breaks.
    pub lossy: bool,
    /// Maximum cost of chunks in flight on a link, in the queues of brokers and libraries. Receivers grant no
    /// more. So a member's mailbox holds at most this, [`crate::CONTROL_WINDOW`] of other messages, and some
    /// heads. The listener's mailbox holds as much for each member. Messages to the group that do not address
    /// a member come on top.
    pub window: u64,
    /// How often a carrier copies each byte of a body in user space on the way out, between [`Message::body`]
    /// and the kernel. The copy that sends share is not counted here.
    pub copies_out: u64,
    /// How often a carrier copies each byte of a body in user space on the way in, between the kernel and
    /// [`Letter::bytes`].
    pub copies_in: u64,
}

/// The kernel's measurements of a connection. `None` where the kernel cannot be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Network {
    /// Segments that this end has retransmitted.
    pub retransmissions: Option<u64>,
    /// The smoothed RTT.
    pub round_trip: Option<Duration>,
    /// The congestion control in use.
    pub congestion: Option<String>,
}

/// The destination of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mailbox {
    /// The listener.
    Listener,
    /// One member.
    Member(MemberId),
    /// All members; only with [`Nature::group`]. Only the listener publishes to it.
    Group,
}

/// A message to publish. Its reader gets the body behind the head, or separately.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// The encoded head, some tens of bytes.
    pub head: &'a [u8],
    /// The payload of a chunk, borrowed from the arena, or a part of a control message. May be empty.
    pub body: &'a [u8],
    /// How reliably the message must travel.
    pub care: Care,
}

/// How reliably a message must travel. A protocol with several grades (QoS) may use a lower one for a lower
/// value here, if messages of the same value keep their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    /// The message must arrive: a link that loses it breaks.
    Control,
    /// The message is a chunk. A [`Nature::lossy`] carrier may lose it.
    Bulk,
    /// It only says when something begins. It may get lost, and should wait for nothing.
    Hint,
}

impl Message<'_> {
    /// Bytes of head and body together.
    pub fn length(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Copies head and body into one buffer. Most carriers need no other copy.
    pub fn joined(&self) -> Vec<u8> {
        [self.head, self.body].concat()
    }
}

/// An event that a carrier reports.
#[derive(Debug)]
pub enum Event {
    /// A message arrived.
    Letter(Letter),
    /// A reader is gone: a member, or the listener if this is a member's carrier. Nobody reads messages that
    /// are published to it.
    Departed {
        /// The reader's mailbox.
        mailbox: Mailbox,
        /// The reason, for people.
        why: String,
    },
    /// At the listener: the protocol's own handshake has refused a connection.
    Refused(Error),
}

/// A message that arrived.
pub struct Letter {
    /// Head and body together, or the head alone. The carrier has checked its length against
    /// [`Nature::max_message`].
    pub bytes: Bytes,
    /// The body, if the protocol carries it separately. The carrier has checked its length too.
    pub body: Option<Bytes>,
    /// The sender, if the protocol itself knows it: the identity of a connection, say.
    pub from: Option<MemberId>,
    /// Bytes of the message on the wire, as exactly as the protocol can tell.
    pub wire: u64,
    /// Dropped once the message is in the queue of its link; the protocol then sends its acknowledgement. The
    /// queue is bounded by the window. So a link that does not receive holds up no messages of other links.
    pub receipt: Option<Box<dyn Any + Send + Sync>>,
}

impl Letter {
    /// The bytes that follow a head of this length. `None` if the body came separately but the head's buffer
    /// has more bytes.
    pub(crate) fn behind(&self, head: usize) -> Option<Bytes> {
        match &self.body {
            None => Some(self.bytes.slice(head..)),
            Some(body) => (head == self.bytes.len()).then(|| body.clone()),
        }
    }
}

impl std::fmt::Debug for Letter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let length = self.bytes.len() + self.body.as_ref().map_or(0, Bytes::len);
        f.debug_struct("Letter").field("bytes", &length).field("from", &self.from).finish()
    }
}

/// The name of a member's mailbox. It is random, so two members do not get the same one by chance. As text,
/// it has 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub [u8; 16]);

impl MemberId {
    /// A new random name. Its first byte is not 0, since ZMTP reserves such identities.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the system has no randomness.
    pub fn random() -> Result<Self> {
        let mut bytes = [0; 16];
        SystemRandom::new().fill(&mut bytes).map_err(|_| {
            Error::new(ErrorKind::System, "name a member", "the system's randomness cannot be read")
        })?;
        bytes[0] |= 0x80;
        Ok(Self(bytes))
    }

    /// Parses the text of a name; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let number = u128::from_str_radix(text, 16).ok().filter(|_| digits)?;
        Some(Self(number.to_be_bytes()))
    }
}

impl std::fmt::Display for MemberId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl std::fmt::Debug for MemberId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mailbox::Listener => f.write_str("listener"),
            Mailbox::Member(id) => write!(f, "member {}", &id.to_string()[..8]),
            Mailbox::Group => f.write_str("group"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_members_text_reads_back() {
        let id = MemberId::random().unwrap();
        assert_eq!(MemberId::parse(&id.to_string()), Some(id));
        assert_ne!(id, MemberId::random().unwrap());
        for text in ["", "+f", &"+".repeat(32), &"A".repeat(32), &"é".repeat(16)] {
            assert_eq!(MemberId::parse(text), None, "{text}");
        }
    }
}
