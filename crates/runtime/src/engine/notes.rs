//! A server's log lines about events. Each is one plain line, and their number for each peer is limited.

use std::collections::HashMap;

use thalweg_wire::text::{plain, MAX_NAME, MAX_REASON};

/// Maximum number of lines that are kept until they are taken. Further lines are only counted.
const MAX_WAITING: usize = 1000;
/// Maximum number of lines about one client in a round, and about all peers together that are not clients.
const MAX_EACH: usize = 32;
/// Longest line in bytes: a name, a reason, and a few words.
const MAX_BYTES: usize = MAX_NAME + MAX_REASON + 128;

/// Log lines that have not been taken.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    lines: Vec<String>,
    left_out: usize,
    /// Number of lines in this round, by client.
    counts: HashMap<String, usize>,
}

impl Notes {
    /// Begins a round: every client's limit starts again.
    pub fn begin_round(&mut self) {
        self.counts.clear();
    }

    /// Adds a line about the server itself.
    pub fn add(&mut self, text: &str) {
        if self.lines.len() < MAX_WAITING {
            self.lines.push(plain(text, MAX_BYTES));
        } else {
            self.left_out += 1;
        }
    }

    /// Adds a line about the server itself, unless the same line is still waiting.
    pub fn add_once(&mut self, text: &str) {
        if !self.lines.contains(&plain(text, MAX_BYTES)) {
            self.add(text);
        }
    }

    /// Adds a line about `client`, or about a peer that is not yet a client if the name is empty.
    pub fn add_of(&mut self, client: &str, text: &str) {
        let counts = self.counts.entry(client.to_owned()).or_default();
        *counts += 1;
        match *counts {
            ..MAX_EACH => self.add(text),
            MAX_EACH => {
                self.add(text);
                let who = if client.is_empty() { "peers that are no clients" } else { client };
                self.add(&format!("further lines about {who} are left out until the next round"));
            }
            _ => {}
        }
    }

    /// Takes all waiting lines.
    pub fn take(&mut self) -> Vec<String> {
        if self.left_out > 0 {
            self.lines.push(format!("{} more lines were left out", self.left_out));
            self.left_out = 0;
        }
        std::mem::take(&mut self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_with_many_lines_leaves_room_for_others() {
        let mut notes = Notes::default();
        (0..10_000).for_each(|n| notes.add_of("loud", &format!("loud joined {n}")));
        (0..10_000).for_each(|n| notes.add_of("", &format!("a peer was turned away {n}")));
        notes.add_of("quiet", "quiet joined");
        let taken = notes.take();
        assert_eq!(taken.len(), 2 * (MAX_EACH + 1) + 1);
        assert_eq!(taken.last().map(String::as_str), Some("quiet joined"));
        notes.add_of("loud", "again");
        assert!(notes.take().is_empty(), "taking lines gives no new ones");
        notes.begin_round();
        notes.add_of("loud", "in the next round");
        assert_eq!(notes.take(), ["in the next round"]);
    }

    #[test]
    fn lines_that_are_left_out_are_counted() {
        let mut notes = Notes::default();
        (0..MAX_WAITING + 5).for_each(|n| notes.add(&n.to_string()));
        assert_eq!(notes.take().last().map(String::as_str), Some("5 more lines were left out"));
        assert!(notes.take().is_empty());
    }

    #[test]
    fn a_line_is_plain_and_not_long() {
        let mut notes = Notes::default();
        notes.add(&"\x1b[2J\n".repeat(10_000));
        notes.add_once("a\nb");
        notes.add_once("a\nb");
        let taken = notes.take();
        assert!(taken[0].len() <= MAX_BYTES && !taken[0].contains(['\x1b', '\n']));
        assert_eq!(taken[1..], ["a b"]);
    }
}
