//! The option `trace`: what a sender believed about its path, as JSON lines.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use thalweg_sending::Belief;
use thalweg_transport::{Chosen, Error, ErrorKind, Kind, Result, Setting};

/// Which file is written; none without one.
pub const TRACE: Setting = Setting {
    name: "trace",
    kind: Kind::Text { default: "" },
    meaning: "a file to whose end this end writes what it believes about the path while it sends, in JSON lines: RTT, rate, \
              window, loss, and why it waits",
};

/// Between two lines of a link, at least.
const EVERY: Duration = Duration::from_millis(5);

/// Writes the lines of one link.
pub struct Trace {
    file: File,
    peer: String,
    began: Instant,
    last: Option<Instant>,
}

impl Trace {
    /// Opens the file that the options name, if they do, for a link to `peer`.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if it cannot be opened.
    pub fn open(chosen: &Chosen, peer: &str) -> Result<Option<Self>> {
        let path = chosen.text(TRACE.name);
        if path.is_empty() {
            return Ok(None);
        }
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(|error| {
            Error::new(ErrorKind::System, "open trace", format!("{path}: {error}"))
                .mend("name a file in a folder that exists and that this user may write to")
        })?;
        // An address has neither quotes nor backslashes; whatever else a name may have is left out.
        let peer = peer.chars().filter(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\')).collect();
        Ok(Some(Self { file, peer, began: Instant::now(), last: None }))
    }

    /// Writes a line, unless the last one was written a moment ago. What cannot be written is left out: nothing is sent
    /// later because of it.
    pub fn note(&mut self, belief: impl FnOnce() -> Belief) {
        let now = Instant::now();
        if self.last.is_some_and(|last| now.duration_since(last) < EVERY) {
            return;
        }
        self.last = Some(now);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let belief = belief().json(now.duration_since(self.began));
        let rest = belief.strip_prefix('{').unwrap_or_default();
        let line = format!("{{\"peer\":\"{}\",\"time\":{:.6},{rest}\n", self.peer, time.as_secs_f64());
        // One call a line, at the end of the file: lines of several processes do not mix.
        let _ = self.file.write_all(line.as_bytes());
    }
}
