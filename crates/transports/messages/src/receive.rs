//! The receiving side of a link. `dispatch` sorts what the carrier brings into the receive queue; `receive`
//! takes it from there.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use thalweg_transport::{Error, ErrorKind, Result, Sink};
use thalweg_wire::FrameHeader;
use thalweg_wire::Kind::Control;

use crate::envelope::Kind;
use crate::intake::{Fragment, Item, Verdict};
use crate::shared::{lock, LinkState};
use crate::shelf::ReportedChunks;
use crate::{Letter, Mailbox};

const RECEIVE: &str = "receive";

/// Processes a message of this link. Never waits.
pub(crate) fn dispatch(shared: &LinkState, kind: Kind, head: usize, letter: &Letter) {
    shared.note_arrival(letter.wire);
    let Some(body) = letter.behind(head) else { return };
    let lossy = shared.nature.lossy;
    let member = shared.ends.to == Mailbox::Listener;
    let verdict = match kind {
        Kind::Begins { header } => begins(shared, &header),
        Kind::GroupBegins { slots, header } if member && slots.contains(shared.ends.slot) => {
            begins(shared, &header)
        }
        Kind::Chunk { number, previous, header } => {
            shared.intake.chunk(lossy, (number, previous), header, body)
        }
        Kind::GroupChunk { number, previous, slots, header, .. } if member => {
            let mine = slots.contains(shared.ends.slot).then_some((header, body));
            if mine.is_some() {
                // A new update begins, so the retained chunks of the last one are not needed any more.
                lock(&shared.shelf).clear();
            }
            shared.intake.group_chunk(lossy, (number, previous), mine)
        }
        Kind::KeptChunk { number, previous, group, header } if member => {
            let held = lock(&shared.shelf).take(group);
            match held {
                Some(payload) => shared.intake.chunk(lossy, (number, previous), header, payload),
                None => shared.intake.missing(lossy, (number, previous), header.length() as u64),
            }
        }
        Kind::Holds if !member => {
            *lock(&shared.reported_chunks) = ReportedChunks::read(&body);
            Verdict::Fine
        }
        Kind::Control { number, before, total, offset, checksum } => {
            shared.intake.control(lossy, number, &before, Fragment { total, offset, checksum, bytes: body })
        }
        Kind::Ledger(ledger) => {
            shared.settle(&ledger);
            shared.intake.ledger(lossy, &ledger)
        }
        Kind::Bye => return shared.end(&format!("the other end has closed the link ({})", printable(&body))),
        // The listener has not received a message of this member yet: send one.
        Kind::Welcome { .. } if member => Verdict::Grant,
        _ => Verdict::Fine,
    };
    match verdict {
        Verdict::Fine => {}
        Verdict::Grant => shared.state_due.notify_one(),
        Verdict::Lost(what) => shared.end(&what),
        Verdict::Corrupt(what) => shared.corrupt(&what),
    }
}

/// Processes the announcement of an update. A peer that may not send chunks may not announce them either.
fn begins(shared: &LinkState, header: &FrameHeader) -> Verdict {
    match shared.ends.standing.check(header.kind, header.length()) {
        Ok(()) => {
            shared.intake.begins(header.chunk);
            Verdict::Fine
        }
        Err(error) => Verdict::Corrupt(error.reason()),
    }
}

/// Makes text from the other end fit for an error message: short, and without control characters.
pub(crate) fn printable(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(300)]);
    text.chars().filter(|c| !c.is_control()).collect()
}

/// Returns the next control message. Until then, gives chunks to the sink.
///
/// # Errors
/// The reason why the link ended; an error if a sink gives a target of the wrong length.
pub(crate) async fn receive(shared: &LinkState, sink: &dyn Sink) -> Result<Bytes> {
    let mut inbox = shared.intake.inbox().await;
    loop {
        let item = tokio::select! {
            biased;
            () = shared.refused() => None,
            item = inbox.next() => item,
        };
        match item.ok_or_else(|| shared.fault(RECEIVE))? {
            Item::Begins(chunk) => {
                shared.intake.take_announcement();
                sink.begun(&chunk);
            }
            Item::Chunk(header, payload) => {
                deliver(shared, &header, &payload, sink)?;
                if shared.intake.take_chunk(payload.len()) {
                    shared.state_due.notify_one();
                }
            }
            Item::Control(part) => {
                let length = part.bytes.len();
                let broken = |what: String| {
                    shared.corrupt(&what);
                    shared.fault(RECEIVE)
                };
                let allowed = shared.ends.standing.check(Control, part.total as usize);
                allowed.map_err(|error| broken(error.reason()))?;
                let whole = inbox.join(part).map_err(broken)?;
                if shared.intake.take_control(length) {
                    shared.state_due.notify_one();
                }
                if let Some(message) = whole {
                    return Ok(message);
                }
            }
            Item::End => return Err(shared.fault(RECEIVE)),
        }
        // A link that always has messages would keep the thread. Let other tasks run after each message.
        tokio::task::yield_now().await;
    }
}

/// Copies a chunk into its target and gives that to `sink`, with the outcome of the checksum.
fn deliver(shared: &LinkState, header: &FrameHeader, payload: &[u8], sink: &dyn Sink) -> Result<()> {
    let length = payload.len() as u64;
    let mut copies = shared.nature.copies_in;
    match sink.place(&header.chunk) {
        None => sink.progress(length),
        Some(mut target) => {
            let place = target.bytes_mut();
            if place.len() != payload.len() {
                let context = format!("a place of {} bytes for {length}", place.len());
                return Err(Error::new(ErrorKind::System, RECEIVE, context));
            }
            place.copy_from_slice(payload);
            copies += 1;
            sink.progress(length);
            let outcome = header.verify(target.bytes());
            sink.stored(&header.chunk, target, outcome);
        }
    }
    shared.copied.fetch_add(copies * length, Ordering::Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use thalweg_conformance::Recorder;
    use thalweg_transport::{Address, AdmissionQueue, Bounds, Capabilities, Origin, Peer, Standing};
    use thalweg_wire::{ChunkHeader, LayoutHash};

    use super::*;
    use crate::envelope::{decode, encode, Tag};
    use crate::shared::Ends;
    use crate::{Carrier, Event, MemberId, Message, Nature};

    /// A carrier that drops what is published and receives nothing. The tests call [`dispatch`] instead.
    struct Silent;

    #[async_trait]
    impl Carrier for Silent {
        fn nature(&self) -> Nature {
            let max_message = 1 << 20;
            Nature { max_message, group: true, lossy: false, window: 4 << 20, copies_out: 1, copies_in: 0 }
        }

        fn address(&self) -> Address {
            Address::parse("silent://receive:1").unwrap()
        }

        async fn publish(&self, _to: Mailbox, message: Message<'_>) -> Result<u64> {
            Ok(message.length() as u64)
        }

        async fn next(&self) -> Result<Event> {
            std::future::pending().await
        }

        async fn close(&self) {}
    }

    /// The listener's end of a link.
    fn link(standing: Standing) -> Arc<LinkState> {
        let member = MemberId([0x81; 16]);
        LinkState::new(Ends {
            to: Mailbox::Member(member),
            tag: Tag { instance: 1, member },
            slot: 0,
            peer: Peer::default(),
            capabilities: Capabilities::default(),
            windows: (1 << 20, 1 << 20),
            group: Arc::default(),
            credit_changed: Arc::default(),
            kept: Arc::default(),
            standing,
            carrier: Arc::new(Silent),
        })
    }

    /// The other end announces an update.
    fn announce(shared: &LinkState) {
        let chunk = ChunkHeader { job: 1, round: 2, sender: 3, layout: LayoutHash(4), offset: 0, length: 9 };
        let bytes = encode(shared.ends.tag, &Kind::Begins { header: FrameHeader::chunk(chunk, 0) });
        let (_, kind, head) = decode(&bytes).unwrap();
        dispatch(
            shared,
            kind,
            head,
            &Letter { bytes: bytes.into(), body: None, from: None, wire: 0, receipt: None },
        );
    }

    #[tokio::test]
    async fn an_announcement_is_as_bad_as_a_chunk_from_an_unauthenticated_peer_and_says_no_more_than_a_time_later(
    ) {
        let sink = Recorder::new(0);
        let shared = link(Standing::new([AdmissionQueue::new(Bounds::default()).enter(Origin::Unknown)]));
        announce(&shared);
        assert_eq!(receive(&shared, &sink).await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(sink.seen().begun, 0);
        let shared = link(Standing::new([]));
        announce(&shared);
        shared.end("that was all");
        assert_eq!(receive(&shared, &sink).await.unwrap_err().kind(), ErrorKind::Closed);
        let seen = sink.seen();
        assert_eq!((seen.begun, seen.placed.len(), seen.progress), (1, 0, 0));
    }
}
