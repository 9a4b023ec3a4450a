//! Writes the hole map to the readers at a Unix socket. A line that must be written waits until there is a
//! reader.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use super::map::MapEntry;

/// Maximum number of readers at a time. Further ones wait.
const MOST: usize = 16;
/// Time after which a reader that does not read a line is dropped, since it delays all connections.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, so that the task does not spin while the system has no file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Listens at `path`, and writes each line to all readers, until all senders of lines are gone.
pub(super) fn attend(path: &Path, lines: mpsc::Receiver<MapEntry>) -> io::Result<()> {
    tokio::spawn(spread(bind(path)?, lines));
    Ok(())
}

/// Binds the socket. Replaces a socket that a killed process has left behind.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_over(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        done => done,
    }
}

fn is_left_over(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|there| there.file_type().is_socket());
    let answer = std::os::unix::net::UnixStream::connect(path);
    is_socket && answer.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

async fn spread(listener: UnixListener, mut lines: mpsc::Receiver<MapEntry>) {
    let mut readers = Vec::new();
    loop {
        tokio::select! {
            biased;
            reader = listener.accept(), if readers.len() < MOST => welcome(&mut readers, reader).await,
            line = lines.recv() => {
                let Some(line) = line else { return };
                write(&listener, &mut readers, line).await;
            }
        }
    }
}

async fn welcome<A>(readers: &mut Vec<UnixStream>, reader: io::Result<(UnixStream, A)>) {
    match reader {
        Ok((reader, _)) => readers.push(reader),
        Err(_) => tokio::time::sleep(PAUSE).await,
    }
}

async fn write(listener: &UnixListener, readers: &mut Vec<UnixStream>, mut line: MapEntry) {
    to_all(readers, line.text.as_bytes()).await;
    while line.needed && readers.is_empty() {
        tokio::select! {
            reader = listener.accept() => welcome(readers, reader).await,
            // The connection has ended meanwhile, so nobody waits for the line.
            () = line.written.closed() => return,
        }
        to_all(readers, line.text.as_bytes()).await;
    }
    // Ignore an error: the caller does not wait for the result.
    let _ = line.written.send(Ok(()));
}

/// Writes to all readers. Drops those that are gone or do not read.
async fn to_all(readers: &mut Vec<UnixStream>, text: &[u8]) {
    let mut there = Vec::with_capacity(readers.len());
    for mut reader in readers.drain(..) {
        if matches!(tokio::time::timeout(TIMEOUT, reader.write_all(text)).await, Ok(Ok(()))) {
            there.push(reader);
        }
    }
    *readers = there;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is how tests report
mod tests {
    use tokio::io::{AsyncBufReadExt, BufReader};

    use super::super::map::Map;
    use super::*;

    fn run(name: &str, what: impl AsyncFnOnce(&Path, Map)) {
        let path = std::env::temp_dir().join(format!("thalweg-{name}-{}", std::process::id()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let map = Map::open(&format!("unix:{}", path.display())).await.unwrap();
            what(&path, map).await;
        });
        assert!(!path.exists(), "the socket is left behind");
    }

    async fn line(reader: &mut BufReader<UnixStream>) -> String {
        let mut text = String::new();
        reader.read_line(&mut text).await.unwrap();
        text
    }

    #[test]
    fn a_line_that_is_needed_waits_for_a_reader() {
        run("waits", async |path, map| {
            map.mention("nobody heard\n".into()).await;
            let mut report = std::pin::pin!(map.tell("one\n".into()));
            tokio::select! {
                biased;
                _ = &mut report => panic!("there is no reader"),
                () = tokio::task::yield_now() => {}
            }
            let mut reader = BufReader::new(UnixStream::connect(path).await.unwrap());
            report.await.unwrap();
            assert_eq!(line(&mut reader).await, "one\n");
            map.mention("two\n".into()).await;
            assert_eq!(line(&mut reader).await, "two\n");
        });
    }

    #[test]
    fn each_reader_has_each_line_and_one_that_goes_holds_up_nobody() {
        run("several", async |path, map| {
            let mut stays = BufReader::new(UnixStream::connect(path).await.unwrap());
            let goes = UnixStream::connect(path).await.unwrap();
            for text in ["one\n", "two\n"] {
                map.tell(text.into()).await.unwrap();
                assert_eq!(line(&mut stays).await, text);
            }
            drop(goes);
            map.tell("three\n".into()).await.unwrap();
            assert_eq!(line(&mut stays).await, "three\n");
        });
    }

    #[test]
    fn a_socket_that_a_killed_process_left_is_taken_over_and_no_other_file() {
        let path = std::env::temp_dir().join(format!("thalweg-stale-{}", std::process::id()));
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        run("stale", async |_, map| {
            drop(map);
            let place = format!("unix:{}", path.display());
            let first = Map::open(&place).await.unwrap();
            assert!(Map::open(&place).await.is_err(), "it is in use");
            drop(first);
            std::fs::write(&path, "mine").unwrap();
            assert!(Map::open(&place).await.is_err());
            std::fs::remove_file(&path).unwrap();
        });
    }
}
