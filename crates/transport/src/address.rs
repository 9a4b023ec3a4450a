//! Addresses `scheme://host:port` or `scheme://host:port/job`. The scheme selects the transport.

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Result};

/// A parsed transport URL, such as `tcp://10.0.0.1:7070`, `tcp://[::1]:0`, `memory://job` or
/// `mqtt://broker:1883/job`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    /// Name of the transport.
    pub scheme: String,
    /// Host name or address, without brackets.
    pub host: String,
    /// Port; 0 lets the system choose when listening.
    pub port: Option<u16>,
    /// The job's name, for a broker that several jobs may share.
    #[serde(default)]
    pub job: Option<String>,
}

impl Address {
    /// Parses a URL.
    ///
    /// # Errors
    /// [`ErrorKind::Address`], with a hint that shows the expected form.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            Error::new(ErrorKind::Address, "parse address", format!("{text:?}: {why}"))
                .hint("write it as scheme://host:port, such as tcp://127.0.0.1:7070")
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("there is no scheme://"))?;
        if scheme.is_empty() || !scheme.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
            return Err(bad("the scheme must be lower-case letters"));
        }
        let (rest, job) = rest.split_once('/').map_or((rest, None), |(rest, job)| (rest, Some(job)));
        if job.is_some_and(|job| !is_name(job)) {
            return Err(bad("after the slash stands a job's name: up to 64 letters, digits, - or _"));
        }
        let (host, port) =
            split_port(rest).ok_or_else(|| bad("the port must be a number from 0 to 65535"))?;
        if host.is_empty() || host.contains(['@', ' ']) {
            return Err(bad("the host is missing, or has a user in it"));
        }
        Ok(Self { scheme: scheme.into(), host: host.into(), port, job: job.map(Into::into) })
    }

    /// Whether both ends are certainly on this machine: a loopback address, or the transport within a
    /// process.
    pub fn is_local(&self) -> bool {
        let ip = self.host.parse::<std::net::IpAddr>();
        self.scheme == "memory" || self.host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    }

    /// `host:port` in the form that the system's resolver takes.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        self.port.map_or(host.clone(), |port| format!("{host}:{port}"))
    }
}

fn is_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=64).contains(&text.len()) && text.bytes().all(allowed)
}

fn split_port(rest: &str) -> Option<(&str, Option<u16>)> {
    let (host, tail) = match rest.strip_prefix('[') {
        Some(inner) => inner.split_once(']')?,
        None => rest.rsplit_once(':').map_or((rest, ""), |(host, _)| (host, &rest[host.len()..])),
    };
    match tail.strip_prefix(':') {
        Some(port) => Some((host, Some(port.parse().ok()?))),
        None if tail.is_empty() => Some((host, None)),
        None => None,
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority())?;
        self.job.as_ref().map_or(Ok(()), |job| write!(f, "/{job}"))
    }
}

impl TryFrom<String> for Address {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints() {
        for text in [
            "tcp://127.0.0.1:7070",
            "tcp://[::1]:0",
            "memory://job-1",
            "tcp://example.org:1",
            "mqtt://[::1]:9/a_job-1",
        ] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Address::parse("tcp://[::1]:9").unwrap().host, "::1");
    }

    #[test]
    fn knows_loopback() {
        let local = |t| Address::parse(t).unwrap().is_local();
        assert!(local("tcp://127.0.0.1:1") && local("tcp://[::1]:1") && local("memory://x"));
        assert!(!local("tcp://0.0.0.0:1") && !local("tcp://192.0.2.1:1") && !local("tcp://[::]:1"));
    }

    #[test]
    fn refuses_with_the_hint() {
        for text in [
            "127.0.0.1:7070",
            "TCP://h:1",
            "tcp://h:99999",
            "tcp://:1",
            "tcp://u@h:1",
            "tcp://[::1]x",
            "mqtt://h:1/a b",
            "mqtt://h:1/",
        ] {
            let error = Address::parse(text).unwrap_err();
            assert!(error.to_string().contains("scheme://host:port"), "{text}: {error}");
        }
    }
}
