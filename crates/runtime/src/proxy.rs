//! A proxy that masks loss in front of any TCP server: its threads, and who hears what it does.

use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::engine::descriptor_limit;
use crate::registry::masking;
use crate::told::{self, UNHEARD};
use crate::Error;

/// How long the end may take of a proxy that never served.
const GRACE: Duration = Duration::from_secs(10);
const START: &str = "start the proxy";

/// A proxy that listens; it serves when it is told to.
pub struct Proxy {
    proxy: Option<masking::Proxy>,
    events: mpsc::Receiver<String>,
    listening: String,
    runtime: tokio::runtime::Runtime,
}

impl Proxy {
    /// Listens, as the JSON object `config` says (`ProxySettings` of the transport `unifl`).
    ///
    /// # Errors
    /// `options` for a setting there is not; `address`, `inuse`; `unsupported` where loss cannot be masked and `plain` is
    /// not set.
    pub fn open(config: &str) -> Result<Self, Error> {
        let settings: masking::ProxySettings = serde_json::from_str(config)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8))
            .thread_name("thalweg-proxy")
            .enable_all()
            .build()
            .map_err(|e| Error::new("system", START, e.to_string()))?;
        let (sender, events) = mpsc::channel(UNHEARD);
        let proxy = runtime.block_on(masking::Proxy::open(settings, descriptor_limit(), sender))?;
        let listening = proxy.listening().trim_end().to_owned();
        Ok(Self { proxy: Some(proxy), events, listening, runtime })
    }

    /// Where it listens, and whether it masks, as JSON.
    pub fn listening(&self) -> &str {
        &self.listening
    }

    /// Serves until `go_on` says no, which is asked several times a second and handed each event, as JSON. Connections
    /// that are there are reset then; the last event says that all is taken back.
    ///
    /// # Errors
    /// `closed` the second time.
    pub fn serve(&mut self, go_on: impl FnMut(Option<&str>) -> bool) -> Result<(), Error> {
        let again = || Error::new("closed", "serve the proxy", "it has ended; open another one");
        let proxy = self.proxy.take().ok_or_else(again)?;
        let (stop, stopped) = watch::channel(false);
        self.runtime.spawn(proxy.run(stopped));
        told::relay(self.runtime.handle(), &mut self.events, go_on, &stop);
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // One that never served has something to take back as well.
        if let Some(proxy) = self.proxy.take() {
            let (_, stopped) = watch::channel(true);
            let end = async { tokio::time::timeout(GRACE, proxy.run(stopped)).await };
            // What is left behind after that does nothing without this process.
            let _ = self.runtime.block_on(end);
        }
    }
}
