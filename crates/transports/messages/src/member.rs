//! Connects a member: it repeats a hello until the listener answers, and then reads its carrier until the
//! link ends.

use std::sync::atomic::AtomicU64;
use std::sync::Arc;
use std::time::Duration;

use thalweg_transport::{Address, Error, ErrorKind, Options, Peer, Result, Standing};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::envelope::{decode, encode, Kind, Tag};
use crate::keeper::{keep, AGAIN};
use crate::link::MessageLink;
use crate::listener::{capabilities, window, MAX_WINDOW};
use crate::receive::{dispatch, printable};
use crate::secret::Half;
use crate::shared::{lock, Ends, LinkState};
use crate::shelf::Shelf;
use crate::{Care, Carrier, Event, Letter, Mailbox, MemberId, Message, Post, Side, HEAD_BYTES};

const CONNECT: &str = "connect";
/// Maximum time that messages have to go out if they were published before the end.
const LINGER: Duration = Duration::from_secs(5);

/// Connects a member to the listener at `address`, within [`Options::connect_timeout`].
pub(crate) async fn connect(post: &dyn Post, address: &Address, options: &Options) -> Result<MessageLink> {
    let deadline = Instant::now() + options.connect_timeout();
    let member = MemberId::random()?;
    let carrier = post.open(Side::Member(member), address, options).await?;
    let closing = CloseOnDrop(Some(carrier.clone()));
    let half = Half::new(options.tls.is_some())?;
    let capabilities = capabilities(post, &carrier.nature());
    let window = window(&carrier.nature(), &capabilities);
    let hello = Hello { address, carrier: &carrier, member, half: &half, window };
    let answer = tokio::time::timeout_at(deadline, hello.ask()).await;
    let (welcome, shelf) = answer.unwrap_or_else(|_| Err(nobody(address, "nobody answers")))?;
    let tag = Tag { instance: welcome.instance, member };
    let halves = [half.public, welcome.key];
    let binding = half.agree(&welcome.key, tag, halves)?;
    let shared = LinkState::new(Ends {
        to: Mailbox::Listener,
        tag,
        slot: welcome.slot,
        peer: Peer { binding, ..carrier.peer(Mailbox::Listener) },
        capabilities,
        windows: (window, welcome.window.min(MAX_WINDOW)),
        group: Arc::new(AtomicU64::new(welcome.group)),
        credit_changed: Arc::new(Notify::new()),
        kept: Arc::default(),
        standing: Standing::new([]),
        carrier,
    });
    closing.keep();
    report_shelf(&shared, shelf.of(welcome.instance, welcome.group)).await;
    // The listener waits for a message before it lets the link be accepted.
    shared.state_due.notify_one();
    tokio::spawn(serve(shared.clone()));
    Ok(MessageLink(shared))
}

/// The listener's answer to a hello.
struct Welcome {
    instance: u64,
    slot: u32,
    group: u64,
    window: u64,
    key: [u8; 32],
}

/// A member's request for a link.
struct Hello<'a> {
    address: &'a Address,
    carrier: &'a Arc<dyn Carrier>,
    member: MemberId,
    half: &'a Half,
    window: u64,
}

impl Hello<'_> {
    /// Repeats the hello until it is answered. Returns the answer and the retained chunks that arrived
    /// meanwhile.
    async fn ask(&self) -> Result<(Welcome, Shelf)> {
        let mut shelf = Shelf::default();
        let (window, key) = (self.window, self.half.public);
        let head = encode(Tag { instance: 0, member: self.member }, &Kind::Hello { window, key });
        let failed = |error: Error| error.during(CONNECT).about(self.address);
        loop {
            let message = Message { head: &head, body: &[], care: Care::Control };
            self.carrier.publish(Mailbox::Listener, message).await.map_err(failed)?;
            let again = Instant::now() + AGAIN;
            while let Ok(event) = tokio::time::timeout_at(again, self.carrier.next()).await {
                if let Some(welcome) = self.answer(event.map_err(failed)?, &mut shelf)? {
                    return Ok((welcome, shelf));
                }
            }
        }
    }

    /// Reads the answer to a hello from an event; `None` if the event has another meaning.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if the listener is gone or refuses; errors of the carrier.
    fn answer(&self, event: Event, shelf: &mut Shelf) -> Result<Option<Welcome>> {
        let letter = match event {
            Event::Letter(letter) => letter,
            Event::Departed { mailbox: Mailbox::Listener, why } => return Err(nobody(self.address, &why)),
            Event::Departed { .. } => return Ok(None),
            Event::Refused(error) => return Err(error),
        };
        match decode(&letter.bytes) {
            Some((Tag { instance, member }, Kind::Welcome { slot, group, window, key }, _))
                if member == self.member =>
            {
                Ok(Some(Welcome { instance, slot, group, window, key }))
            }
            Some((tag, Kind::Bye, head)) if tag.member == self.member => {
                Err(nobody(self.address, &printable(&letter.behind(head).unwrap_or_default())))
            }
            Some((tag, Kind::GroupChunk { number, header, kept: true, .. }, head)) => {
                shelf.note_arrival(letter.wire);
                letter
                    .behind(head)
                    .into_iter()
                    .for_each(|body| shelf.put(tag.instance, number, &header, body));
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

fn nobody(address: &Address, why: &str) -> Error {
    Error::new(ErrorKind::Unreachable, CONNECT, format!("{address}: {why}"))
        .hint("start the server first, or check the address")
}

/// Tells the listener which retained chunks this member holds. This is the first message on the link.
async fn report_shelf(shared: &LinkState, shelf: Shelf) {
    shared.note_arrival(shelf.wire());
    let report = shelf.report(shared.nature.max_message - HEAD_BYTES);
    if report.is_empty() {
        return;
    }
    *lock(&shared.shelf) = shelf;
    let _numbers = shared.numbers.lock().await;
    // An error has ended the link.
    let _ = shared.publish(&Kind::Holds, &report).await;
}

/// Reads the carrier until the link has ended, then closes the carrier.
async fn serve(shared: Arc<LinkState>) {
    let keeper = tokio::spawn(keep(shared.clone(), None));
    let carrier = shared.ends.carrier.clone();
    loop {
        let event = tokio::select! {
            biased;
            () = shared.ended() => break,
            event = carrier.next() => event,
        };
        match event {
            Ok(Event::Letter(letter)) => take(&shared, &letter),
            Ok(Event::Departed { mailbox: Mailbox::Listener, why }) => shared.end(&why),
            Ok(Event::Departed { .. } | Event::Refused(_)) => {}
            Err(error) => shared.end(&error.reason()),
        }
    }
    // This fails only when the runtime shuts down.
    let _ = keeper.await;
    let _ = tokio::time::timeout(LINGER, carrier.close()).await;
}

fn take(shared: &LinkState, letter: &Letter) {
    let Some((tag, kind, head)) = decode(&letter.bytes) else { return };
    let group = matches!(kind, Kind::GroupChunk { .. } | Kind::GroupBegins { .. });
    if tag == shared.ends.tag || group && tag.instance == shared.ends.tag.instance {
        dispatch(shared, kind, head, letter);
    }
}

/// Closes a carrier if connecting fails or is cancelled.
struct CloseOnDrop(Option<Arc<dyn Carrier>>);

impl CloseOnDrop {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(carrier) = self.0.take() {
            tokio::spawn(async move { carrier.close().await });
        }
    }
}
