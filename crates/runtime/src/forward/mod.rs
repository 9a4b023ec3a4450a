//! Forwards other programs' TCP streams over a link of any transport.
//!
//! ```text
//! program -- TCP --> near end == one link, many streams ==> far end -- TCP --> target
//!
//! near       accepts programs, dials the far end, redials when the link is lost
//! far        accepts links, connects each stream to the target
//! handshake  who may forward: authenticated like clients of a job, by token or certificate
//! carrier    one link and its `thalweg_proto::Mux`: messages, chunks, time
//! program    one stream and its TCP connection
//! http2      one stream and its HTTP/2, call by call
//! ```

mod carrier;
mod events;
mod far;
mod handshake;
mod http2;
mod near;
mod options;
mod program;

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use self::events::{Event, Events};
use self::far::Far;
use self::near::Near;
pub use self::options::ForwardOptions;
use crate::engine::TaskSet;
use crate::relay::{self, MAX_EVENTS};
use crate::{Error, Kind};

/// How long a forwarder's tasks may take to end when it is dropped.
const TASKS_TIMEOUT: Duration = Duration::from_millis(500);

enum End {
    Near(Box<Near>),
    Far(Far),
}

/// One end of a forwarded path. It listens as soon as it is made; [`Forwarder::serve`] makes it serve.
pub struct Forwarder {
    end: Option<End>,
    task_set: TaskSet,
    events: mpsc::Receiver<String>,
    listening: String,
}

impl Forwarder {
    /// Starts listening, with the options in the JSON object `config` ([`ForwardOptions`]). A near end also
    /// connects to its far end.
    ///
    /// # Errors
    /// `options` for an unknown or impossible setting; `security` for an address that other machines can
    /// reach, without tokens or certificates; `refused` if the far end does not admit this end; the
    /// transport's or the system's errors for the addresses.
    pub fn open(config: &str) -> Result<Self, Error> {
        let options: ForwardOptions = serde_json::from_str(config)?;
        options.check()?;
        let task_set = TaskSet::new()?;
        let (sender, receiver) = mpsc::channel(MAX_EVENTS);
        let events = Events::new(sender);
        let end = task_set.handle().block_on(async {
            Ok::<_, Error>(match options.via.is_some() {
                true => End::Near(Box::new(Near::open(&options, events).await?)),
                false => End::Far(Far::open(&options, events).await?),
            })
        })?;
        let listening = match &end {
            End::Near(near) => near.listening(),
            End::Far(far) => far.listening(),
        };
        Ok(Self { end: Some(end), task_set, events: receiver, listening: Event::text(&listening) })
    }

    /// The address at which this end listens, as JSON.
    pub fn listening(&self) -> &str {
        &self.listening
    }

    /// Serves until `go_on` returns false. `go_on` is called several times a second, and with each event as
    /// JSON. Open connections are then reset.
    ///
    /// # Errors
    /// `closed` at the second call; the reason why a near end cannot forward any more, such as `refused`.
    pub fn serve(&mut self, go_on: impl FnMut(Option<&str>) -> bool) -> Result<(), Error> {
        let again = || Error::new(Kind::Closed, "forward", "it has ended").hint("open another one");
        let end = self.end.take().ok_or_else(again)?;
        let (stop, stopped) = watch::channel(false);
        let (done, mut outcome) = oneshot::channel();
        self.task_set.spawn(async move {
            let ended = match end {
                End::Near(near) => near.run(stopped).await,
                End::Far(far) => far.run(stopped).await,
            };
            // Ignore an error: the caller's thread is gone.
            let _ = done.send(ended);
        });
        let handle = self.task_set.handle().clone();
        relay::relay(&handle, &mut self.events, go_on, &stop);
        // No more events can arrive. Either the end has stopped, or it took too long and is aborted with its
        // tasks.
        outcome.try_recv().unwrap_or(Ok(()))
    }
}

/// Waits until the owner stops this end, or is gone.
async fn stop(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task_set.dismiss(TASKS_TIMEOUT);
    }
}
