//! Forwards TCP streams of other programs over a link of any transport.
//!
//! ```text
//! program -- TCP --> near end == one link, many streams ==> far end -- TCP --> target
//!
//! near        accepts programs, dials the far end, dials again when the link is lost
//! far         accepts links, connects each stream to the target
//! handshake   who may forward: as clients of a job, by token or certificate
//! carrier     one link and its `thalweg_proto::Mux`: messages, chunks, time
//! program     one stream and its TCP connection
//! http2       one stream and its HTTP/2, call by call
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
use crate::engine::Crew;
use crate::told::{self, UNHEARD};
use crate::Error;

/// How long its tasks may take when it is dropped.
const TASKS_PATIENCE: Duration = Duration::from_millis(500);

enum End {
    Near(Box<Near>),
    Far(Far),
}

/// One end of a forwarded path; it listens from when it is made, and serves when it is told to.
pub struct Forwarder {
    end: Option<End>,
    crew: Crew,
    told: mpsc::Receiver<String>,
    listening: String,
}

impl Forwarder {
    /// Listens, as the JSON object `config` says ([`ForwardOptions`]). A near end connects to its far end first.
    ///
    /// # Errors
    /// `options` for a setting there is not; `security` for an open address without tokens or certificates; `refused` if
    /// the far end does not let us in; what the transport or the system say of the addresses.
    pub fn open(config: &str) -> Result<Self, Error> {
        let options: ForwardOptions = serde_json::from_str(config)?;
        options.check()?;
        let crew = Crew::new()?;
        let (sender, told) = mpsc::channel(UNHEARD);
        let events = Events::new(sender);
        let end = crew.handle().block_on(async {
            Ok::<_, Error>(match options.via.is_some() {
                true => End::Near(Box::new(Near::open(&options, events).await?)),
                false => End::Far(Far::open(&options, events).await?),
            })
        })?;
        let listening = match &end {
            End::Near(near) => near.listening(),
            End::Far(far) => far.listening(),
        };
        Ok(Self { end: Some(end), crew, told, listening: Event::text(&listening) })
    }

    /// Where it listens, as JSON.
    pub fn listening(&self) -> &str {
        &self.listening
    }

    /// Serves until `go_on` says no, which is asked several times a second and handed each event, as JSON. Connections
    /// that are there are reset then.
    ///
    /// # Errors
    /// `closed` the second time; why a near end can no longer forward, such as `refused`.
    pub fn serve(&mut self, go_on: impl FnMut(Option<&str>) -> bool) -> Result<(), Error> {
        let again = || Error::new("closed", "forward", "it has ended; open another one");
        let end = self.end.take().ok_or_else(again)?;
        let (stop, stopped) = watch::channel(false);
        let (done, mut outcome) = oneshot::channel();
        self.crew.spawn(async move {
            let ended = match end {
                End::Near(near) => near.run(stopped).await,
                End::Far(far) => far.run(stopped).await,
            };
            // Nobody waits for it if the caller's thread is gone.
            let _ = done.send(ended);
        });
        let handle = self.crew.handle().clone();
        told::relay(&handle, &mut self.told, go_on, &stop);
        // Its events have ended, so it has; or it took too long, and ends with its crew.
        outcome.try_recv().unwrap_or(Ok(()))
    }
}

/// Waits until the owner wants the end, or is gone.
async fn stop(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.crew.dismiss(TASKS_PATIENCE);
    }
}
