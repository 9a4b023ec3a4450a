//! What a protocol has to do, for links to be made of it.
//!
//! There is one listener, and members. Each has a carrier of its own, opened by [`Post::open`], and reads one stream of
//! messages: the listener its inbox; a member its own inbox and the group's, in the order in which they were published.
//!
//! | | ZMTP | MQTT | AMQP |
//! |---|---|---|---|
//! | [`Mailbox::Listener`] | the ROUTER | a topic | a queue, by the default exchange |
//! | [`Mailbox::Member`] | an identity | a topic each | a queue each, by the default exchange |
//! | [`Mailbox::Group`] | a PUB's topic; none with ROUTER | a topic all subscribe | a fan-out exchange bound to all queues |
//! | [`Nature::lossy`] | no | QoS 0 | no |
//! | [`Carrier::flush`] | nothing to ask | PUBACK, PUBCOMP | publisher confirms |
//! | [`Letter::receipt`] | none | PUBACK, PUBREC | the acknowledgement, within the prefetch |
//! | [`Carrier::publish_kept`] | no | a retained message, a topic each | no |
//! | [`Event::Gone`] | the connection's end | last will | a mandatory message that comes back |

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use ring::rand::{SecureRandom, SystemRandom};
use thalweg_transport::{Address, Capabilities, Error, ErrorKind, Options, Origin, Peer, Result, Setting};

/// A protocol: opens carriers.
#[async_trait]
pub trait Post: Send + Sync + 'static {
    /// Name of the transport, also the scheme of its addresses.
    fn name(&self) -> &'static str;

    /// What links over it can do. `fan_out` if [`Nature::group`] can be; a link says what its carrier's nature makes of
    /// it; `max_chunk` leaves room for [`crate::HEAD_BYTES`] in the largest message.
    fn capabilities(&self) -> Capabilities;

    /// What only this protocol can be told, in [`Options::own`].
    fn settings(&self) -> &'static [Setting] {
        &[]
    }

    /// Opens a carrier: connects, logs in, makes its mailboxes. What is published to these once it is open arrives.
    /// Waits at most [`Options::connect_timeout`].
    ///
    /// # Errors
    /// As `Transport::listen` and `Transport::connect`. [`ErrorKind::InUse`] if another listener has the address
    /// and the protocol can tell; [`ErrorKind::Unreachable`] if there is nobody, or no broker, at the address;
    /// [`ErrorKind::Security`] for a login or a certificate that is refused; [`ErrorKind::Unsupported`] for an
    /// option it cannot honour.
    async fn open(&self, side: Side, address: &Address, options: &Options) -> Result<Arc<dyn Carrier>>;
}

/// Whose carrier is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The listener's: reads [`Mailbox::Listener`].
    Listener,
    /// A member's: reads its own [`Mailbox::Member`], and [`Mailbox::Group`] if there is one.
    Member(MemberId),
}

/// One party's connection to the post. All methods are called from several tasks at once, but for [`Carrier::next`].
#[async_trait]
pub trait Carrier: Send + Sync {
    /// What it is like, once open: a broker may have told its limits.
    fn nature(&self) -> Nature;

    /// Where members find the listener, with the port that the system chose; the broker's address if there is one.
    fn address(&self) -> Address;

    /// Publishes a message, and waits while the carrier's own buffer, which is bounded, is full. Messages from one
    /// carrier to one reader keep their order, whichever of its mailboxes they go to. Dropping the future publishes
    /// the message whole or not at all. What it keeps it copies.
    ///
    /// Returns the bytes that its protocol makes of it on the wire, as well as it can tell.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] with the reason, if the carrier has ended. A reader who is not there is no error here:
    /// the message vanishes, and [`Event::Gone`] tells if the protocol does.
    async fn publish(&self, to: Mailbox, message: Message<'_>) -> Result<u64>;

    /// Whether [`Carrier::publish_shared`] keeps a body as it is. Senders of the same chunk then share a copy of it.
    fn shares(&self) -> bool {
        false
    }

    /// As [`Carrier::publish`], with a chunk's body that others hold too.
    ///
    /// # Errors
    /// As [`Carrier::publish`].
    async fn publish_shared(&self, to: Mailbox, head: &[u8], body: Arc<Vec<u8>>) -> Result<u64> {
        self.publish(to, Message { head, body: &body, care: Care::Bulk }).await
    }

    /// Whether [`Carrier::publish_kept`] keeps, if this is the listener's carrier.
    fn keeps(&self) -> bool {
        false
    }

    /// As [`Carrier::publish`] to the group. Besides, the post keeps the message, in place of the one it kept as
    /// `place`, until the listener's carrier is closed: a member whose carrier is opened later gets it, if it can be
    /// done before what is published to that member then.
    ///
    /// # Errors
    /// As [`Carrier::publish`].
    async fn publish_kept(&self, _place: u64, message: Message<'_>) -> Result<u64> {
        self.publish(Mailbox::Group, message).await
    }

    /// Waits until the post has what was published before: the broker has confirmed it, where it does.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] with the reason.
    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// What comes next. One caller at a time, which takes at once what comes; dropping the future loses nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] with the reason, when the carrier has ended: the connection broke, the broker went
    /// away, [`Carrier::close`] was called. It does not connect again by itself: another one is opened.
    async fn next(&self) -> Result<Event>;

    /// Who is at `mailbox` (the listener, or a member), as far as the protocol knows by its own means: an address
    /// for people, a name that a certificate vouches for. [`Peer::binding`] stays empty.
    fn peer(&self, mailbox: Mailbox) -> Peer {
        Peer { address: format!("{} {mailbox}", self.address()), ..Peer::default() }
    }

    /// What the kernel says of the connection that leads to `mailbox`; with a broker, of the one to the broker.
    fn network(&self, _mailbox: Mailbox) -> Network {
        Network::default()
    }

    /// Why what is published waits at the moment, for people: an alarm of the broker.
    fn held(&self) -> Option<String> {
        None
    }

    /// Who answers for a member that is not admitted: its address, if the protocol tells it.
    fn origin(&self, _member: MemberId) -> Origin {
        Origin::Unknown
    }

    /// The session has let a member in: its connections are no longer those of guests.
    fn admit(&self, _member: MemberId) {}

    /// The link with a member has ended: whatever is kept for it may go.
    fn forget(&self, _member: MemberId) {}

    /// Ends it: what was published before still goes out, as far as the protocol can promise; waiting calls fail.
    /// Idempotent. Dropping a carrier ends it too.
    async fn close(&self);
}

/// What a carrier is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nature {
    /// Most bytes of a message, head and body.
    pub max_message: usize,
    /// Whether there is a mailbox of the group: one publish reaches all members, and is sent once.
    pub group: bool,
    /// Whether messages may be lost without the carrier's end. One that is not lossy and loses one all the same (a
    /// broker that drops from a full queue) is noticed by its number, and the link breaks.
    pub lossy: bool,
    /// Bytes of chunks that may be under way on a link, in queues of brokers and of libraries. Receivers grant no more.
    /// So a member's mailbox holds at most these, [`crate::CONTROL_WINDOW`] bytes of other messages and some heads; the
    /// listener's mailbox as much for each member. In the group's, besides, is what is not addressed to a member.
    pub window: u64,
    /// Times each byte of a body is copied in user space on its way out, between [`Message::body`] and the kernel;
    /// beside the copy that senders share.
    pub copies_out: u64,
    /// The same on its way in, between the kernel and [`Letter::bytes`].
    pub copies_in: u64,
}

/// What the kernel says of a connection. `None` where it cannot be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Network {
    /// Segments retransmitted by this end.
    pub retransmissions: Option<u64>,
    /// Smoothed round-trip time.
    pub round_trip: Option<Duration>,
    /// The congestion control in use.
    pub congestion: Option<String>,
}

/// Whom a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mailbox {
    /// The listener.
    Listener,
    /// One member.
    Member(MemberId),
    /// All members, of a carrier with [`Nature::group`]. Only the listener writes to it.
    Group,
}

/// A message to publish: a reader gets the body behind the head, or apart.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// Some tens of bytes.
    pub head: &'a [u8],
    /// Bytes of a chunk, borrowed from the arena, or of a control message; may be empty.
    pub body: &'a [u8],
    /// How much depends on it.
    pub care: Care,
}

/// How much depends on a message. A protocol with several grades of care may take a lesser one for what needs less, if
/// order is kept among messages of the same care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    /// All: a link that loses it breaks.
    Control,
    /// It is of a chunk, which [`Nature::lossy`] carriers may lose.
    Bulk,
    /// Nothing but a time: it may be lost, and should not wait for anything.
    Hint,
}

impl Message<'_> {
    /// Bytes of head and body.
    pub fn length(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Head and body in one piece: the one copy that most carriers need.
    pub fn joined(&self) -> Vec<u8> {
        [self.head, self.body].concat()
    }
}

/// What comes from a carrier.
#[derive(Debug)]
pub enum Event {
    /// A message.
    Letter(Letter),
    /// A member has gone, or for a member, the listener: nothing published to it will be read.
    Gone {
        /// Who.
        mailbox: Mailbox,
        /// Why, for people.
        why: String,
    },
    /// Somebody did not get in, for the listener: refused by the protocol's own handshake.
    Refused(Error),
}

/// A message that came.
pub struct Letter {
    /// Head and body, or the head alone. Its length has been checked against [`Nature::max_message`].
    pub bytes: Bytes,
    /// The body, if the protocol carries it apart. Its length has been checked too.
    pub body: Option<Bytes>,
    /// Who the protocol itself knows has sent it: a connection's identity. `None` if it knows nothing.
    pub from: Option<MemberId>,
    /// Bytes that it took on the wire, as well as the protocol can tell.
    pub wire: u64,
    /// Dropped once the message is in the queue of its link, which is bounded: the place of an acknowledgement. The
    /// message does not wait for a link that does not receive, so that others' behind it come through.
    pub receipt: Option<Box<dyn Any + Send + Sync>>,
}

impl Letter {
    /// What is behind a head of this length; `None` if the body is apart, and something else is there.
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

/// The name of a member's mailbox: random, so that nobody takes another's by chance. As text, 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub [u8; 16]);

impl MemberId {
    /// A new one. Its first byte is not 0, which ZMTP keeps for itself.
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

    /// Reads the text of one; `None` if it is not.
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
