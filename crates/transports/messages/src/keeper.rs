//! The supervising task of each link. It sends this end's state when that has changed, ends the link after
//! silence, and says goodbye at the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_transport::Result;
use thalweg_wire::limits;
use tokio::sync::Mutex;

use crate::envelope::{encode, Kind};
use crate::shared::LinkState;
use crate::{Care, Message};

/// Pause between repetitions of a handshake message, until it is answered.
pub(crate) const AGAIN: Duration = Duration::from_millis(250);
/// Pause between repetitions of this end's state, while something is in flight on a lossy carrier.
const REPEAT: Duration = Duration::from_millis(500);
/// Pause between keep-alives.
const SIGN: Duration = Duration::from_secs(10);
/// A link ends if nothing arrives for this long.
const SILENCE: Duration = limits::UNMEASURED_SILENCE;
/// Longest time that a goodbye may take.
const FAREWELL: Duration = Duration::from_secs(5);

/// Numbers of the chunks to the group. The lock is held while a message is published to the group.
#[derive(Debug, Default)]
pub(crate) struct GroupNumbers {
    /// Number of the last chunk whose publication has begun.
    pub begun: u64,
    /// Number of the last chunk whose publication was confirmed.
    pub confirmed: u64,
}

/// What a listener needs to repeat its welcome until the member answers.
pub(crate) struct Greeting {
    pub group: Arc<Mutex<GroupNumbers>>,
    /// The listener's public key; zeros without encryption.
    pub key: [u8; 32],
    pub deadline: Instant,
}

/// Runs until the link has ended, then sends the goodbye. If the admission queue evicts the peer, the link
/// ends.
pub(crate) async fn keep(shared: Arc<LinkState>, greeting: Option<Greeting>) {
    tokio::select! {
        () = stay(&shared, greeting) => {}
        error = shared.ends.standing.evicted() => shared.end(&error.reason()),
    }
    // Ignore an error or a timeout: if nobody reads any more, the other end notices the silence.
    let _ = tokio::time::timeout(FAREWELL, farewell(&shared)).await;
}

/// Welcomes the member, then sends this end's state when it is due, until the link ends.
async fn stay(shared: &LinkState, greeting: Option<Greeting>) {
    if let Some(greeting) = greeting {
        greet(shared, &greeting).await;
    }
    while !shared.has_ended() {
        let busy = shared.nature.lossy && !(shared.bulk.is_idle() && shared.control.is_idle());
        let pause = if busy { REPEAT } else { SIGN };
        tokio::select! {
            biased;
            () = shared.ended() => break,
            () = shared.state_due.notified() => {}
            () = tokio::time::sleep(pause) => {
                if shared.ends.carrier.held().is_some() {
                    // The broker delays messages, so silence does not mean that the other end is gone.
                    shared.note_arrival(0);
                } else if shared.last_arrival().elapsed() > SILENCE {
                    shared.end(&format!("nothing was heard of the other end for {} s", SILENCE.as_secs()));
                }
            }
        }
        tokio::select! {
            biased;
            () = shared.ended() => break,
            // An error has ended the link.
            _ = shared.publish_ledger() => {}
        }
    }
}

/// Repeats the welcome until the member answers or the deadline passes.
async fn greet(shared: &LinkState, greeting: &Greeting) {
    let again_and_again = async {
        while !shared.is_ready() && !shared.has_ended() {
            // An error has ended the link.
            let _ = welcome(shared, greeting).await;
            tokio::time::sleep(AGAIN).await;
        }
    };
    tokio::select! {
        biased;
        ready = shared.until_ready("accept") => drop(ready),
        () = again_and_again => {}
        () = tokio::time::sleep_until(greeting.deadline.into()) => {
            shared.end("the member said hello, and nothing more");
        }
    }
}

/// Sends a welcome. Holds the group's lock meanwhile, so that no chunk goes to the group between reading its
/// number and sending the welcome. So the member knows exactly with which chunk it begins.
async fn welcome(shared: &LinkState, greeting: &Greeting) -> Result<u64> {
    // Without a group, do not take the lock: a member that does not read its welcome must not delay others.
    let numbers = if shared.nature.group { Some(greeting.group.lock().await) } else { None };
    let _numbers = shared.numbers.lock().await;
    let group = numbers.as_ref().map_or(0, |numbers| numbers.confirmed);
    let (slot, window) = (shared.ends.slot, shared.ends.windows.0);
    shared.publish(&Kind::Welcome { slot, group, window, key: greeting.key }, &[]).await
}

async fn farewell(shared: &LinkState) -> Result<()> {
    let _numbers = shared.numbers.lock().await;
    let (head, why) = (encode(shared.ends.tag, &Kind::Bye), shared.farewell());
    let message = Message { head: &head, body: why.as_bytes(), care: Care::Control };
    shared.ends.carrier.publish(shared.ends.to, message).await?;
    shared.ends.carrier.flush().await
}
