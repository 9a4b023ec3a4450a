//! What is told of proxied connections: lines of JSON.

use serde::Serialize;

/// Both ends of a proxied connection.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Ends {
    /// Its number.
    pub connection: u64,
    /// The client's address.
    pub from: String,
    /// The address that the server sees it come from, once it is connected.
    pub local: Option<String>,
}

/// What a connection has carried, in bytes.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Totals {
    /// Length of the client's stream as the server has it, holes included.
    pub bytes: u64,
    /// Of it in holes.
    pub missing: u64,
    /// Holes that were told of.
    pub holes: u64,
    /// Lost on the way and sent again by the client, where that is known.
    pub repaired: Option<u64>,
    /// To the client.
    pub returned: u64,
}

/// A line.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(super) enum Record<'a> {
    /// Connections are taken.
    Listening {
        listen: &'a str,
        to: &'a str,
        /// Whether loss is masked.
        masks: bool,
        /// Why not.
        why: Option<&'a str>,
        holes: &'a str,
    },
    /// A client has come, and the server has been reached.
    Connection {
        #[serde(flatten)]
        ends: &'a Ends,
        /// Whether its losses are masked.
        masks: bool,
    },
    /// Bytes of the client's stream, from `start` to before `end`, that stand in for what was lost.
    Hole {
        #[serde(flatten)]
        ends: &'a Ends,
        start: u64,
        end: u64,
    },
    /// A connection is over.
    End {
        #[serde(flatten)]
        ends: &'a Ends,
        #[serde(flatten)]
        totals: &'a Totals,
        /// Which side broke it, and how; nothing where both have ended it.
        error: Option<&'a str>,
    },
    /// No connection is taken any more.
    Stopped { connections: u64 },
}

impl Record<'_> {
    /// The line, with its end.
    pub(super) fn line(&self) -> String {
        // It only fails for maps whose keys are no text, and there is none.
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
