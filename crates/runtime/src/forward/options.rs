//! Options of an end of a forwarded path.

use std::time::Duration;

use serde::Deserialize;
use thalweg_proto::ForwardConfig;
use thalweg_transport::{Capabilities, Options};
use thalweg_wire::forward::MOST_WINDOW;
use thalweg_wire::text::check_name;

use super::http2::Answers;
use crate::options::{seconds, Layers, DEFAULT_CHUNK};
use crate::{Error, Kind};

/// Largest possible limit on connections.
const MOST_CONNECTIONS: u32 = 4096;
const LEAST_WINDOW: u64 = 4 << 10;
/// Maximum number of bytes of a message that answers a call.
const MOST_MESSAGE: usize = 1 << 20;

/// Options of one end. A near end has `via`, a far end has `to`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ForwardOptions {
    /// The address that this end listens at: a near end at `host:port` for programs, a far end at a
    /// transport's address for near ends.
    pub listen: String,
    /// Near end: address of the far end.
    pub via: Option<String>,
    /// Far end: the target, as `host:port`.
    pub to: Option<String>,
    /// Options of the transport.
    pub transport: Options,
    /// Layers around the transport.
    pub layers: Layers,
    /// Seed of the layers.
    pub seed: u64,
    /// Near end: the name under which it authenticates itself.
    pub name: String,
    /// Near end: its token, in hex. Either end: a secret that all ends share.
    pub token: Option<String>,
    /// Far end: public key, in hex, of the issuer of the near ends' tokens.
    pub issuer: Option<String>,
    /// Bytes of each direction of a connection that its receiver buffers.
    pub window: u64,
    /// Maximum number of connections at a time; further ones wait.
    pub connections: u32,
    /// Far end: a link ends, at both of its ends, after at least this many seconds of silence.
    pub liveness: f64,
    /// Near end: seconds that a program may take from connecting to its first byte.
    pub first_byte: f64,
    /// Near end: seconds for which it tries to reach the far end at the start. Programs wait as long when the
    /// link is lost.
    pub timeout: f64,
    /// Whether this end terminates HTTP/2.
    pub grpc: bool,
    /// Near end: methods whose calls this end answers itself.
    pub answers: Vec<Answer>,
}

/// A gRPC method, and the message that answers its calls.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// The method as calls name it: `/package.Service/Method`.
    pub method: String,
    /// The message, in hex.
    #[serde(default)]
    pub message: String,
}

impl Answer {
    fn check(&self) -> Result<(), Error> {
        let bad = |what: &str| Error::new(Kind::Options, "forward", what);
        let parts: Vec<&str> = self.method.split('/').collect();
        let named = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !matches!(parts[..], ["", service, method] if named(service) && named(method)) {
            return Err(
                bad(&format!("{:?} is no method", self.method)).hint("write it as /package.Service/Method")
            );
        }
        match self.message() {
            Some(message) if message.len() <= MOST_MESSAGE => Ok(()),
            Some(_) => Err(bad("the message of an answer has at most 1 MiB")),
            None => Err(bad("the message of an answer is not in hex")),
        }
    }

    fn message(&self) -> Option<Vec<u8>> {
        let digits = self.message.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        digits.map(|pair| (pair.len() == 2).then(|| byte(pair))?).collect()
    }
}

impl Default for ForwardOptions {
    fn default() -> Self {
        Self {
            listen: String::new(),
            via: None,
            to: None,
            transport: Options::default(),
            layers: Layers::default(),
            seed: 0,
            name: "forward".into(),
            token: None,
            issuer: None,
            window: 4 << 20,
            connections: 256,
            liveness: 10.0,
            first_byte: 20.0,
            timeout: 10.0,
            grpc: false,
            answers: Vec::new(),
        }
    }
}

impl ForwardOptions {
    /// Checks the options whose types allow impossible values.
    ///
    /// # Errors
    /// `options`, with the option that is impossible and its possible values.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |what: &str| Err(Error::new(Kind::Options, "forward", what));
        if self.via.is_some() == self.to.is_some() {
            return Err(Error::new(Kind::Options, "forward", "a near end has via, a far end has to")
                .hint("give one of them"));
        }
        if let Err(why) = check_name(&self.name) {
            return bad(&why);
        }
        if !(LEAST_WINDOW..=MOST_WINDOW).contains(&self.window) {
            return bad("window must be from 4 KiB to 1 GiB");
        }
        if !(1..=MOST_CONNECTIONS).contains(&self.connections) {
            return bad("connections must be from 1 to 4096");
        }
        let times = [self.liveness, self.timeout, self.first_byte];
        if times.iter().any(|t| Duration::try_from_secs_f64(*t).is_err()) {
            return bad("liveness, timeout and first_byte are seconds, not negative");
        }
        if self.liveness < 0.1 {
            return bad("liveness must be at least 0.1 s, or every pause ends a link");
        }
        let near_grpc = self.grpc && self.via.is_some();
        if !near_grpc && !self.answers.is_empty() {
            return bad("only a near end with grpc answers calls");
        }
        self.answers.iter().try_for_each(Answer::check)
    }

    /// The calls that a near end answers itself.
    pub(super) fn answers(&self) -> Answers {
        Answers::new(
            self.answers.iter().map(|answer| (answer.method.clone(), answer.message().unwrap_or_default())),
        )
    }

    pub(crate) fn timeout(&self) -> Duration {
        seconds(self.timeout)
    }

    pub(crate) fn first_byte(&self) -> Duration {
        seconds(self.first_byte)
    }

    pub(crate) fn liveness(&self) -> Duration {
        seconds(self.liveness)
    }

    /// The rules of a link with these capabilities. `granted` is the number of bytes that the other end
    /// buffers of a new stream; 0 if unknown.
    pub(crate) fn rules(&self, can: &Capabilities, granted: u64, liveness: Duration) -> ForwardConfig {
        ForwardConfig {
            window: self.window,
            // If chunks may overtake messages, data of a stream must wait for the stream's own grant.
            granted: if can.ordered { granted } else { 0 },
            // Allow twice as many: a stream that is still ending at one end may already have ended at the
            // other.
            streams: 2 * self.connections,
            chunk: can.chunk(None, DEFAULT_CHUNK),
            reliable: can.reliable,
            liveness,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), Error> {
        serde_json::from_str::<ForwardOptions>(text)?.check()
    }

    #[test]
    fn impossible_options_are_refused_with_what_may_be() {
        check(r#"{"listen": ":1", "via": "tcp://h:1"}"#).unwrap();
        for (text, why) in [
            (r#"{"listen": ":1"}"#, "via"),
            (r#"{"via": "tcp://h:1", "to": "h:1"}"#, "give one of them"),
            (r#"{"to": "h:1", "window": 1}"#, "4 KiB"),
            (r#"{"to": "h:1", "connections": 0}"#, "4096"),
            (r#"{"to": "h:1", "liveness": 0}"#, "0.1 s"),
            (r#"{"to": "h:1", "timeout": -1}"#, "not negative"),
            (r#"{"to": "h:1", "name": "a\nb"}"#, "name"),
            (r#"{"to": "h:1", "form": 1}"#, "unknown field"),
            (r#"{"via": "tcp://h:1", "answers": [{"method": "/a.B/c"}]}"#, "near end with grpc"),
            (r#"{"to": "h:1", "grpc": true, "answers": [{"method": "/a.B/c"}]}"#, "near end with grpc"),
            (
                r#"{"via": "tcp://h:1", "grpc": true, "answers": [{"method": "a.B/c"}]}"#,
                "/package.Service/Method",
            ),
            (
                r#"{"via": "tcp://h:1", "grpc": true, "answers": [{"method": "/a.B/"}]}"#,
                "/package.Service/Method",
            ),
            (r#"{"via": "tcp://h:1", "grpc": true, "answers": [{"method": "/a/b", "message": "0"}]}"#, "hex"),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.kind() == Kind::Options && error.to_string().contains(why), "{text}: {error}");
        }
    }
}
