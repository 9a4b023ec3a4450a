//! A proxy that masks loss in front of any TCP server: its threads, and the relay of its events.

use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::engine::descriptor_limit;
use crate::registry::masking;
use crate::relay::{self, MAX_EVENTS};
use crate::{Error, Kind};

/// How long shutting down may take for a proxy that never served.
const GRACE: Duration = Duration::from_secs(10);
const START: &str = "start the proxy";

/// A proxy that listens. [`Proxy::serve`] makes it serve.
pub struct Proxy {
    proxy: Option<masking::Proxy>,
    events: mpsc::Receiver<String>,
    listening: String,
    runtime: tokio::runtime::Runtime,
}

impl Proxy {
    /// Starts listening, with the options in the JSON object `config` (`ProxySettings` of the transport
    /// `unifl`).
    ///
    /// # Errors
    /// `options` for an unknown setting; `address`, `inuse`; `unsupported` if loss cannot be masked here and
    /// `plain` is not set.
    pub fn open(config: &str) -> Result<Self, Error> {
        let settings: masking::ProxySettings = serde_json::from_str(config)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8))
            .thread_name("thalweg-proxy")
            .enable_all()
            .build()
            .map_err(|e| Error::new(Kind::System, START, e.to_string()))?;
        let (sender, events) = mpsc::channel(MAX_EVENTS);
        let proxy = runtime.block_on(masking::Proxy::open(settings, descriptor_limit(), sender))?;
        let listening = proxy.listening().trim_end().to_owned();
        Ok(Self { proxy: Some(proxy), events, listening, runtime })
    }

    /// The address at which the proxy listens, and whether it masks loss, as JSON.
    pub fn listening(&self) -> &str {
        &self.listening
    }

    /// Serves until `go_on` returns false. `go_on` is called several times a second, and with each event as
    /// JSON. Open connections are then reset. The last event says that all changes to the system are undone.
    ///
    /// # Errors
    /// `closed` at the second call.
    pub fn serve(&mut self, go_on: impl FnMut(Option<&str>) -> bool) -> Result<(), Error> {
        let again = || Error::new(Kind::Closed, "serve the proxy", "it has ended").hint("open another one");
        let proxy = self.proxy.take().ok_or_else(again)?;
        let (stop, stopped) = watch::channel(false);
        self.runtime.spawn(proxy.run(stopped));
        relay::relay(self.runtime.handle(), &mut self.events, go_on, &stop);
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Close a proxy that never served, too: it also has changes to the system to undo.
        if let Some(proxy) = self.proxy.take() {
            let (_, stopped) = watch::channel(true);
            let end = async { tokio::time::timeout(GRACE, proxy.run(stopped)).await };
            // Ignore a timeout: changes that are not undone by then have no effect without this process.
            let _ = self.runtime.block_on(end);
        }
    }
}
