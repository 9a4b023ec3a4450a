//! Puts the masking endpoint in front of the kernel's listener, on systems that have TUN devices.

use std::net::SocketAddr;

use thalweg_masking::Config;
use thalweg_transport::trace::TraceFile;
use tokio::sync::mpsc;

use crate::settings::Limits;

#[cfg(target_os = "linux")]
pub(crate) use linux::{Front, Newcomer};
#[cfg(not(target_os = "linux"))]
pub(crate) use other::{Front, Newcomer};

/// Why loss cannot be masked, and what a user can do about it.
pub(crate) struct Obstacle {
    pub cause: String,
    pub hint: Option<&'static str>,
}

impl From<&str> for Obstacle {
    fn from(cause: &str) -> Self {
        Self { cause: cause.into(), hint: None }
    }
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.cause)?;
        self.hint.map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

/// Puts an endpoint in front of the listener at `at`. The error says why that is not possible.
pub(crate) async fn open(
    at: SocketAddr,
    config: Config,
    limits: Limits,
    trace: Option<TraceFile>,
    newcomers: mpsc::Sender<Newcomer>,
) -> Result<Front, Obstacle> {
    #[cfg(target_os = "linux")]
    return linux::open(at, config, limits, trace, newcomers).await;
    #[cfg(not(target_os = "linux"))]
    return other::open(at, config, limits, trace, newcomers);
}

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::Arc;

    use ring::rand::{SecureRandom, SystemRandom};
    use thalweg_masking::Endpoint;
    use thalweg_tun::Device;
    use tokio::sync::oneshot;

    use super::*;
    use crate::driver::DriverState;
    pub(crate) use crate::driver::Newcomer;
    use crate::route::Way;

    /// The kernel replaces `%d` by a number.
    const NAME: &str = "unifl%d";

    pub(crate) struct Front {
        shared: Arc<DriverState>,
        ended: oneshot::Receiver<()>,
    }

    impl Front {
        pub(crate) fn stop_listening(&self) {
            self.shared.stop_listening();
        }

        /// Waits until the last connection has ended and the system settings are restored.
        pub(crate) async fn ended(self) {
            // Ignore an error: the thread has ended, so there is nothing to wait for.
            let _ = self.ended.await;
        }
    }

    pub(super) async fn open(
        at: SocketAddr,
        config: Config,
        limits: Limits,
        trace: Option<TraceFile>,
        newcomers: mpsc::Sender<Newcomer>,
    ) -> Result<Front, Obstacle> {
        if at.ip().is_loopback() {
            return Err("the loopback loses nothing".into());
        }
        let mut secret = [0; 16];
        SystemRandom::new().fill(&mut secret).map_err(|_| "the system has no random numbers")?;
        let (first, second) = secret.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        let full = config.send_buffer as u64;
        let config = Config { ports: vec![at.port()], ..config };
        let endpoint = Endpoint::new(config, [number(first), number(second)]);
        let device = Device::new(NAME).map_err(|e| explain(&e))?;
        let way = Way::open(device.name(), at.ip(), at.port()).await.map_err(|e| explain(&e))?;
        let started = DriverState::start(endpoint, device, way, (limits, trace, full), newcomers);
        started.map(|(shared, ended)| Front { shared, ended }).map_err(|e| explain(&e))
    }

    fn explain(error: &std::io::Error) -> Obstacle {
        let denied = error.kind() == std::io::ErrorKind::PermissionDenied;
        let hint = denied.then_some("run it as root, or with CAP_NET_ADMIN");
        Obstacle { cause: error.to_string(), hint }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::io;
    use std::task::{Context, Poll};

    use thalweg_tcp::line::{HoledStream, Taken};
    use thalweg_transport::Counters;

    use super::*;
    use crate::proxy::Caller;

    pub(crate) struct Front(std::convert::Infallible);
    /// Other systems never have a new connection.
    pub(crate) type Newcomer = (Nobody, String);
    pub(crate) struct Nobody(std::convert::Infallible);

    impl HoledStream for Nobody {
        fn frames(&self, _: u64, _: Option<thalweg_transport::Sealed>) {
            match self.0 {}
        }

        fn poll_take(&self, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<Taken>> {
            match self.0 {}
        }

        fn poll_put(&self, _: &mut Context<'_>, _: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
            match self.0 {}
        }

        fn poll_hung_up(&self, _: &mut Context<'_>) -> Poll<()> {
            match self.0 {}
        }

        fn shut(&self) {
            match self.0 {}
        }

        fn tell(&self, _: &mut Counters) {
            match self.0 {}
        }
    }

    impl Caller for Nobody {
        fn finish(&self) {
            match self.0 {}
        }

        fn abort(&self) {
            match self.0 {}
        }

        fn poll_broken(&self, _: &mut Context<'_>) -> Poll<io::Error> {
            match self.0 {}
        }

        fn poll_begun(&self, _: &mut Context<'_>) -> Poll<()> {
            match self.0 {}
        }

        fn repaired(&self) -> Option<u64> {
            match self.0 {}
        }
    }

    impl Front {
        pub(crate) fn stop_listening(&self) {
            match self.0 {}
        }

        pub(crate) async fn ended(self) {
            match self.0 {}
        }
    }

    pub(super) fn open(
        _: SocketAddr,
        _: Config,
        _: Limits,
        _: Option<TraceFile>,
        _: mpsc::Sender<Newcomer>,
    ) -> Result<Front, Obstacle> {
        Err("there are no TUN devices on this system".into())
    }
}
