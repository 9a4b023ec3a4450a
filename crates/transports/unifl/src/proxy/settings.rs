//! Settings of a proxy, and their checks.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use thalweg_masking::Config;
use thalweg_sockets::socket::resolve;
use thalweg_transport::trace::TraceFile;
use thalweg_transport::{
    Acceptor, Address, AdmissionQueue, Bounds, ConnectionLimit, Error, ErrorKind, Options, Result, Settings,
};

use super::cut::MOST_UNIT;
use crate::settings::{self, Content, Limits};

const OPEN: &str = "open the proxy";
/// Maximum number of connections. The endpoint has room for twice as many, since it remembers ended ones for
/// a while.
const MOST_CONNECTIONS: usize = 2048;
/// How long a client may continue to send after the server has closed its side. In effect there is no limit.
const EVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// Default hosts: the host to listen at, and the host of the server.
const ANYWHERE: &str = "0.0.0.0";
const HERE: &str = "127.0.0.1";

/// Settings of a proxy.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxySettings {
    /// Where to listen: `host:port`, or `:port` for all addresses of this machine. With port 0 the system
    /// chooses a port.
    pub listen: String,
    /// The server: `host:port`, or `:port` for this machine.
    pub to: String,
    /// Where to write the hole map: `-` is standard output, `unix:PATH` a socket, and anything else a file.
    pub holes: String,
    /// Bytes at the beginning of each connection that are never masked.
    pub reliable: u64,
    /// Holes are widened to multiples of this many bytes, counted from the end of `reliable`; 1 to 4096.
    pub align: u64,
    /// Whether to serve as an ordinary TCP proxy if loss cannot be masked.
    pub plain: bool,
    /// Maximum number of connections at a time, 1 to 2048. Further ones wait.
    pub connections: usize,
    /// Seconds that a client may take from its connection to its first byte.
    pub first_byte: f64,
    /// A client is disconnected after this many seconds without a packet from it; `None` for no limit.
    pub idle: Option<f64>,
    /// Maximum number of bytes of a connection that wait for the server; also the largest window. The default
    /// is 32 MiB.
    pub buffer: Option<u32>,
    /// Options of the `unifl` transport.
    pub own: Settings,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            listen: String::new(),
            to: String::new(),
            holes: "-".into(),
            reliable: 64 << 10,
            align: 1,
            plain: false,
            connections: 256,
            first_byte: 20.0,
            idle: None,
            buffer: None,
            own: Settings::default(),
        }
    }
}

impl ProxySettings {
    /// The limits of a connection, and the settings of the endpoint.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], with the name of the wrong setting.
    pub(super) fn read(&self) -> Result<(Limits, Config)> {
        within("align", self.align, 1, MOST_UNIT)?;
        within("connections", self.connections as u64, 1, MOST_CONNECTIONS as u64)?;
        within("buffer", u64::from(self.buffer.unwrap_or(1 << 20)), 1 << 16, 1 << 30)?;
        let options = Options { own: self.own.clone(), receive_buffer: self.buffer, ..Options::default() };
        if settings::backend(&options)? == settings::Backend::Ebpf {
            return Err(unsupported("backend is \"ebpf\", but the proxy has \"tun\" alone".into())
                .hint("leave the option out"));
        }
        let (limits, config) = settings::read(&options)?;
        let limits = Limits { content: Content::Plain { reliable: self.reliable }, ..limits };
        Ok((limits, Config { fin_wait: EVER, idle: self.timeout()?, ..config }))
    }

    /// The admission queue, in which connections wait for their first byte, and the limit of `connections`
    /// that are served. Each connection needs two file descriptors.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], with the setting that is not possible.
    pub(super) fn acceptor(&self, descriptors: u64) -> Result<Acceptor> {
        let Ok(timeout) = Duration::try_from_secs_f64(self.first_byte) else {
            return Err(unsupported(format!("first_byte is {} seconds", self.first_byte))
                .hint("give it as seconds, not negative"));
        };
        ConnectionLimit::check(OPEN, self.connections, 2, descriptors)?;
        let bounds = Bounds { timeout, ..Bounds::of_process(descriptors) };
        Ok(Acceptor::new(
            AdmissionQueue::new(bounds),
            ConnectionLimit::with_half_for_each_address(self.connections),
        ))
    }

    /// The trace file that the options name, if any.
    ///
    /// # Errors
    /// [`ErrorKind::System`](thalweg_transport::ErrorKind::System) if the file cannot be opened.
    pub(super) fn trace(&self) -> Result<Option<TraceFile>> {
        settings::trace(&Options { own: self.own.clone(), ..Options::default() })
    }

    fn timeout(&self) -> Result<Option<Duration>> {
        let Some(seconds) = self.idle else { return Ok(None) };
        match Duration::try_from_secs_f64(seconds) {
            Ok(idle) if !idle.is_zero() && idle <= EVER => Ok(Some(idle)),
            _ => Err(unsupported(format!("idle is {seconds} seconds"))
                .hint("give it more than 0 and at most a year, or leave it out")),
        }
    }

    /// Resolves the address to listen at.
    ///
    /// # Errors
    /// [`ErrorKind::Address`].
    pub(super) async fn listen_at(&self) -> Result<SocketAddr> {
        Ok(resolve(OPEN, &parse("listen", &self.listen, ANYWHERE)?).await?[0])
    }

    /// Resolves the server's addresses, at least one.
    ///
    /// # Errors
    /// [`ErrorKind::Address`].
    pub(super) async fn servers(&self) -> Result<Vec<SocketAddr>> {
        let address = parse("to", &self.to, HERE)?;
        if address.port == Some(0) {
            return Err(written_badly("to", &self.to));
        }
        resolve(OPEN, &address).await
    }
}

fn unsupported(context: String) -> Error {
    Error::new(ErrorKind::Unsupported, OPEN, context)
}

fn within(name: &str, value: u64, least: u64, most: u64) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(unsupported(format!("{name} is {value}, but must be from {least} to {most}"))
        .hint("give a number in these bounds"))
}

fn written_badly(name: &str, text: &str) -> Error {
    Error::new(ErrorKind::Address, OPEN, format!("{name} is {text:?}, which is no HOST:PORT"))
        .hint("write it as 192.0.2.1:9000, or :9000")
}

fn parse(name: &str, text: &str, host: &str) -> Result<Address> {
    let host = if text.starts_with(':') { host } else { "" };
    let address = Address::parse(&format!("tcp://{host}{text}")).ok();
    address.filter(|a| a.port.is_some() && a.job.is_none()).ok_or_else(|| written_badly(name, text))
}

/// Whether connections to the server would come back to the proxy itself.
pub(super) fn leads_back(listen: SocketAddr, to: SocketAddr) -> bool {
    let own = || std::net::UdpSocket::bind((to.ip(), 0)).is_ok();
    to.port() == listen.port() && (to.ip() == listen.ip() || (listen.ip().is_unspecified() && own()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is how tests report
mod tests {
    use super::*;

    fn settings(json: &str) -> ProxySettings {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn addresses_are_written_without_a_scheme() {
        let parsed = |text| parse("to", text, HERE).map(|a| a.authority());
        assert_eq!(parsed("192.0.2.1:9000").unwrap(), "192.0.2.1:9000");
        assert_eq!(parsed(":9000").unwrap(), "127.0.0.1:9000");
        assert_eq!(parsed("[::1]:9000").unwrap(), "[::1]:9000");
        for text in ["", "here", "here:", "here:99999", "a b:1", "tcp://here:1", "here:1/job"] {
            let error = parsed(text).unwrap_err();
            assert!(error.kind() == ErrorKind::Address && error.to_string().contains("HOST:PORT"), "{text}");
        }
    }

    #[test]
    fn what_is_set_reaches_the_endpoint() {
        let (limits, config) =
            settings(r#"{"own": {"budget": 0.1}, "reliable": 7, "idle": 2.5}"#).read().unwrap();
        assert!(matches!(limits.content, Content::Plain { reliable: 7 }));
        assert_eq!((limits.budget, config.idle), (0.1, Some(Duration::from_millis(2500))));
        assert!(settings("{}").read().unwrap().1.idle.is_none());
    }

    #[test]
    fn connections_leave_descriptors_for_others() {
        assert!(settings("{}").acceptor(1024).is_ok());
        let error = settings(r#"{"connections": 1000}"#).acceptor(1024).unwrap_err();
        assert!(error.to_string().contains("--connections 256"), "{error}");
        assert!(settings(r#"{"first_byte": -1}"#).acceptor(1024).is_err());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for json in [
            r#"{"align": 0}"#,
            r#"{"align": 5000}"#,
            r#"{"connections": 0}"#,
            r#"{"buffer": 100}"#,
            r#"{"idle": 0}"#,
            r#"{"idle": -1}"#,
            r#"{"idle": 1e300}"#,
            r#"{"own": {"budget": 2}}"#,
            r#"{"own": {"speed": 2}}"#,
            r#"{"own": {"backend": "ebpf"}}"#,
        ] {
            let parsed: std::result::Result<ProxySettings, _> = serde_json::from_str(json);
            let refused = parsed.map(|settings| settings.read().map(|_| ()).unwrap_err().kind());
            assert!(refused.is_err() || refused.is_ok_and(|kind| kind == ErrorKind::Unsupported), "{json}");
        }
    }

    #[test]
    fn a_way_that_leads_back_is_seen() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert!(leads_back(at("127.0.0.1:9000"), at("127.0.0.1:9000")));
        assert!(leads_back(at("0.0.0.0:9000"), at("127.0.0.1:9000")));
        assert!(!leads_back(at("0.0.0.0:9000"), at("127.0.0.1:9001")));
        assert!(!leads_back(at("0.0.0.0:9000"), at("192.0.2.1:9000")));
        assert!(!leads_back(at("192.0.2.1:9000"), at("127.0.0.1:9000")));
    }
}
