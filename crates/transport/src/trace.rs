//! The option `trace`: what the ends of links believed about their paths, as JSON lines.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{Chosen, Error, ErrorKind, Kind, Result, Setting};

/// Which file is written; none without one.
pub const TRACE: Setting = Setting {
    name: "trace",
    kind: Kind::Text { default: "" },
    meaning: "a file to whose end this end writes what it believes about the path while updates pass, in JSON lines: RTT, \
              rate, window, loss; `thalweg report` draws it",
    needs: &[],
};

/// Between two lines of a link, at least.
const EVERY: Duration = Duration::from_millis(5);

/// The file, open for lines of several links.
#[derive(Debug, Clone)]
pub struct TraceFile(Arc<File>);

impl TraceFile {
    /// Opens the file that the options name, if they do.
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

    /// Lines of a link to `peer`.
    #[must_use]
    pub fn of(&self, peer: &str) -> Trace {
        static LINKS: AtomicU64 = AtomicU64::new(0);
        // An address has neither quotes nor backslashes; whatever else a name may have is left out.
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
    /// Beginning of each line.
    head: String,
    began: Instant,
    last: Option<Instant>,
}

impl Trace {
    /// Writes a line, unless the last one was written a moment ago. `believed` returns a JSON object; its argument is the
    /// time since the link was made. What cannot be written is left out: nothing is sent later because of it.
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
        // One call a line, at the end of the file: lines of several processes do not mix.
        let _ = (&*self.file.0).write_all(line.as_bytes());
    }
}
