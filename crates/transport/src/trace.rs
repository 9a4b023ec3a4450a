//! The option `trace`: senders write their estimates of their paths to a file, as JSON lines.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{Chosen, Error, ErrorKind, Kind, Result, Setting};

/// The option `trace`: the path of the file. If it is empty, nothing is written.
pub const TRACE: Setting = Setting {
    name: "trace",
    kind: Kind::Text { default: "" },
    meaning: "a file to whose end this end writes what it believes about the path while updates pass, in JSON lines: RTT, \
              rate, window, loss; `thalweg report` draws it",
    needs: &[],
};

/// Least time between two lines of a link.
const EVERY: Duration = Duration::from_millis(5);

/// The file, open for the lines of several links.
#[derive(Debug, Clone)]
pub struct TraceFile(Arc<File>);

impl TraceFile {
    /// Opens the file that the options name. `None` if they name none.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if it cannot be opened.
    pub fn open(chosen: &Chosen) -> Result<Option<Self>> {
        let path = chosen.text(TRACE.name);
        if path.is_empty() {
            return Ok(None);
        }
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(|error| {
            Error::new(ErrorKind::System, "open trace", format!("{path}: {error}"))
                .hint("name a file in a folder that exists and that this user may write to")
        })?;
        Ok(Some(Self(Arc::new(file))))
    }

    /// Returns the writer for a link to `peer`.
    #[must_use]
    pub fn of(&self, peer: &str) -> Trace {
        static LINKS: AtomicU64 = AtomicU64::new(0);
        // An address has neither quotes nor backslashes. Other names may, so these characters are left out.
        let peer: String =
            peer.chars().filter(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\')).collect();
        let number = LINKS.fetch_add(1, Ordering::Relaxed);
        let head = format!("{{\"link\":\"{}-{number}\",\"peer\":\"{peer}\"", std::process::id());
        Trace { file: self.clone(), head, began: Instant::now(), last: None }
    }
}

/// Writes the lines of one link.
#[derive(Debug)]
pub struct Trace {
    file: TraceFile,
    /// The beginning of each line: the link's name and its peer.
    head: String,
    /// When this writer was made.
    began: Instant,
    /// When the last line was written.
    last: Option<Instant>,
}

impl Trace {
    /// Writes a line, unless the link's last line is less than 5 ms old. `believed` gets the time since this
    /// writer was made, and returns a JSON object. Errors of writing are ignored, so that they cannot delay
    /// sending.
    pub fn note(&mut self, believed: impl FnOnce(Duration) -> String) {
        if self.last.is_none_or(|last| last.elapsed() >= EVERY) {
            self.end(believed);
        }
    }

    /// Writes a line in any case: the last one of an update.
    pub fn end(&mut self, believed: impl FnOnce(Duration) -> String) {
        let now = Instant::now();
        self.last = Some(now);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let believed = believed(now.duration_since(self.began));
        let rest = believed.strip_prefix('{').unwrap_or_default();
        let line = format!("{},\"time\":{:.6},{rest}\n", self.head, time.as_secs_f64());
        // Each line is one append to the file, so that lines of several processes do not mix.
        let _ = (&*self.file.0).write_all(line.as_bytes());
    }
}
