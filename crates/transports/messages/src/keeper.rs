//! The task beside each link: says how things stand when there is something to say, notices silence, says farewell.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_transport::Result;
use tokio::sync::Mutex;

use crate::envelope::{encode, Kind};
use crate::shared::{words, LinkState};
use crate::{Care, Message};

/// How often a handshake's messages are repeated, until there is an answer.
pub(crate) const AGAIN: Duration = Duration::from_millis(250);
/// How often things are said again while something is under way that may be lost.
const REPEAT: Duration = Duration::from_millis(500);
/// How often a sign of life is given.
const SIGN: Duration = Duration::from_secs(10);
/// After how long without one a link has ended.
const SILENCE: Duration = Duration::from_secs(60);
/// How long a farewell may take.
const FAREWELL: Duration = Duration::from_secs(5);

/// Numbers of what is published to the group. Held while a message is published.
#[derive(Debug, Default)]
pub(crate) struct GroupNumbers {
    pub begun: u64,
    pub certain: u64,
}

/// What a listener says to a member until it is known to have heard.
pub(crate) struct Greeting {
    pub group: Arc<Mutex<GroupNumbers>>,
    pub key: [u8; 32],
    pub deadline: Instant,
}

/// Keeps a link until it has ended, and its farewell is said.
pub(crate) async fn keep(shared: Arc<LinkState>, greeting: Option<Greeting>) {
    tokio::select! {
        () = stay(&shared, greeting) => {}
        error = shared.ends.standing.turned_out() => shared.end(&words(&error)),
    }
    // Where nobody listens any more, this fails or takes too long; the other end then sees it by itself.
    let _ = tokio::time::timeout(FAREWELL, farewell(&shared)).await;
}

/// Greets, and then says how things stand, until the link has ended.
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
            () = shared.tell.notified() => {}
            () = tokio::time::sleep(pause) => {
                if shared.ends.carrier.held().is_some() {
                    shared.hear(0); // nobody can say a word
                } else if shared.heard().elapsed() > SILENCE {
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

async fn greet(shared: &LinkState, greeting: &Greeting) {
    let again_and_again = async {
        while !shared.is_ready() && !shared.has_ended() {
            let _ = welcome(shared, greeting).await; // an error has ended the link
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

/// Nothing goes to the group between the number said and the saying, so that the member knows where it begins.
async fn welcome(shared: &LinkState, greeting: &Greeting) -> Result<u64> {
    // Without a group nobody waits for a member that does not take its greeting.
    let numbers = if shared.nature.group { Some(greeting.group.lock().await) } else { None };
    let _turn = shared.turn.lock().await;
    let group = numbers.as_ref().map_or(0, |numbers| numbers.certain);
    let (slot, window) = (shared.ends.slot, shared.ends.windows.0);
    shared.publish(&Kind::Welcome { slot, group, window, key: greeting.key }, &[]).await
}

async fn farewell(shared: &LinkState) -> Result<()> {
    let _turn = shared.turn.lock().await;
    let (head, why) = (encode(shared.ends.tag, &Kind::Bye), shared.farewell());
    let message = Message { head: &head, body: why.as_bytes(), care: Care::Control };
    shared.ends.carrier.publish(shared.ends.to, message).await?;
    shared.ends.carrier.flush().await
}
