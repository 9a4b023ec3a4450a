//! Lines of JSON that describe proxied connections.

use serde::Serialize;

/// Identifies a proxied connection by both its ends.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Ends {
    /// Number of the connection.
    pub connection: u64,
    /// The client's address.
    pub from: String,
    /// The address from which the server sees the connection come, once there is one.
    pub local: Option<String>,
}

/// The byte counts of a connection.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Totals {
    /// Length of the client's stream, holes included.
    pub bytes: u64,
    /// Bytes of the client's stream that are in holes.
    pub missing: u64,
    /// Number of reported holes.
    pub holes: u64,
    /// Bytes that were lost and retransmitted, if that is known.
    pub repaired: Option<u64>,
    /// Bytes that were sent to the client.
    pub returned: u64,
}

/// One line of the proxy's events or of its hole map.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(super) enum Record<'a> {
    /// The proxy accepts connections.
    Listening {
        listen: &'a str,
        to: &'a str,
        /// Whether loss is masked.
        masks: bool,
        /// The reason why loss is not masked; `None` if it is masked.
        why: Option<&'a str>,
        holes: &'a str,
    },
    /// A client has connected, and the server was reached.
    Connection {
        #[serde(flatten)]
        ends: &'a Ends,
        /// Whether losses of this connection are masked.
        masks: bool,
    },
    /// A hole: bytes of the client's stream from `start` to before `end`.
    Hole {
        #[serde(flatten)]
        ends: &'a Ends,
        start: u64,
        end: u64,
    },
    /// A connection has ended.
    End {
        #[serde(flatten)]
        ends: &'a Ends,
        #[serde(flatten)]
        totals: &'a Totals,
        /// Which side broke the connection, and how; `None` if both have closed it.
        error: Option<&'a str>,
    },
    /// The proxy accepts no more connections.
    Stopped { connections: u64 },
}

impl Record<'_> {
    /// The line, with its line feed.
    pub(super) fn line(&self) -> String {
        // This fails only for maps whose keys are not strings, and there are none.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_all_that_is_needed_to_match_them() {
        let (from, local) = ("192.0.2.7:4000".to_owned(), Some("127.0.0.1:5000".to_owned()));
        let ends = Ends { connection: 3, from, local };
        let line = Record::Hole { ends: &ends, start: 100, end: 108 }.line();
        let both = r#""connection":3,"from":"192.0.2.7:4000","local":"127.0.0.1:5000""#;
        assert_eq!(line, format!("{{\"event\":\"hole\",{both},\"start\":100,\"end\":108}}\n"));
        let totals = Totals { bytes: 9, missing: 4, holes: 1, repaired: None, returned: 2 };
        let line = Record::End { ends: &ends, totals: &totals, error: None }.line();
        let sums = r#""bytes":9,"missing":4,"holes":1,"repaired":null,"returned":2,"error":null"#;
        assert_eq!(line, format!("{{\"event\":\"end\",{both},{sums}}}\n"));
    }
}
