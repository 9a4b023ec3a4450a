//! Writes the hole map to standard output, to a file, or to every process that connects to a Unix socket.
//!
//! One writer writes all lines, so no line is broken. The proxy sends the bytes of a hole to the server only
//! after the hole's line is written. So a slow writer delays them, and a writer that fails ends the
//! connection. No server gets a hole that was not reported.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thalweg_transport::{Error, ErrorKind, Result};
use tokio::sync::{mpsc, oneshot};

#[cfg(unix)]
use super::readers::attend;

/// Maximum number of lines that wait to be written. Beyond that, callers wait.
const WAITING: usize = 256;
/// How long the proxy waits for the last lines when it ends.
const GRACE: Duration = Duration::from_secs(1);
/// Prefix of a path that names a socket.
const SOCKET: &str = "unix:";

/// A line to write.
pub(super) struct MapEntry {
    pub text: String,
    /// Whether the line must be written: if so, it waits until there is a reader.
    pub needed: bool,
    /// The channel for the result. It is closed if nobody waits for the result.
    pub written: oneshot::Sender<io::Result<()>>,
}

pub(super) struct Map {
    lines: mpsc::Sender<MapEntry>,
    socket: Option<PathBuf>,
}

impl Map {
    /// Opens `place`: `-` is standard output, `unix:PATH` a socket, and anything else a file to append to.
    ///
    /// # Errors
    /// [`ErrorKind::Address`] if the place cannot be written.
    pub(super) async fn open(place: &str) -> Result<Self> {
        let failed = |error: io::Error| {
            Error::new(ErrorKind::Address, "open the hole map", format!("{place}: {error}"))
                .hint("give a file that can be written, unix:PATH for a socket, or - for standard output")
        };
        let (lines, waiting) = mpsc::channel(WAITING);
        if let Some(path) = place.strip_prefix(SOCKET) {
            let path = PathBuf::from(path);
            attend(&path, waiting).map_err(failed)?;
            return Ok(Self { lines, socket: Some(path) });
        }
        if place == "-" {
            start(io::stdout(), waiting).map_err(failed)?;
        } else {
            start(open_file(Path::new(place)).map_err(failed)?, waiting).map_err(failed)?;
        }
        Ok(Self { lines, socket: None })
    }

    /// Writes a line that must be written, and waits until it is.
    pub(super) async fn tell(&self, text: String) -> io::Result<()> {
        let ended = || io::Error::other("it has ended");
        self.put(text, true).await.ok_or_else(ended)?.await.map_err(|_| ended())?
    }

    /// Queues a line for those that read the map now. It waits for no reader.
    pub(super) async fn mention(&self, text: String) {
        drop(self.put(text, false).await);
    }

    /// Waits until all lines are written, for at most [`GRACE`].
    pub(super) async fn flush(&self) {
        let last = async {
            if let Some(written) = self.put(String::new(), false).await {
                // Ignore an error: the caller of the line that failed has already got it.
                let _ = written.await;
            }
        };
        let _ = tokio::time::timeout(GRACE, last).await;
    }

    async fn put(&self, text: String, needed: bool) -> Option<oneshot::Receiver<io::Result<()>>> {
        let (written, result) = oneshot::channel();
        self.lines.send(MapEntry { text, needed, written }).await.ok().map(|()| result)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if let Some(path) = &self.socket {
            // Ignore an error: another process may have removed the socket.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        // Refuse a FIFO: opening it would block until it has a reader, and Ctrl-C could not interrupt that.
        if std::fs::metadata(path).is_ok_and(|there| there.file_type().is_fifo()) {
            return Err(io::Error::other("is a named pipe"));
        }
    }
    File::options().append(true).create(true).open(path)
}

/// Starts a thread that writes, since writing may block.
fn start(mut to: impl Write + Send + 'static, mut lines: mpsc::Receiver<MapEntry>) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("thalweg-holes".into());
    thread.spawn(move || {
        while let Some(line) = lines.blocking_recv() {
            let done = to.write_all(line.text.as_bytes()).and_then(|()| to.flush());
            // Ignore an error: the caller does not wait for the result.
            let _ = line.written.send(done);
        }
    })?;
    Ok(())
}

#[cfg(not(unix))]
fn attend(_: &Path, _: mpsc::Receiver<MapEntry>) -> io::Result<()> {
    Err(io::Error::other("this system has no Unix sockets"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is how tests report
mod tests {
    use super::*;

    fn run<T>(what: impl std::future::Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(what)
    }

    #[test]
    fn a_line_that_was_told_is_in_the_file() {
        let path = std::env::temp_dir().join(format!("thalweg-holes-{}", std::process::id()));
        run(async {
            let map = Map::open(path.to_str().unwrap()).await.unwrap();
            map.mention("one\n".into()).await;
            map.tell("two\n".into()).await.unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        });
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_place_that_cannot_be_written_is_refused_with_the_hint() {
        let error = run(Map::open("/no/such/folder/holes")).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Address);
        assert!(error.to_string().contains("unix:PATH"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_line_that_cannot_be_written_is_an_error() {
        // This device always says that it is full.
        let error = run(async { Map::open("/dev/full").await.unwrap().tell("one\n".into()).await });
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
