//! The node's end of a running worker: its process, its sockets, and the orders that wait to be sent.

#[cfg(feature = "baselines")]
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{send, SendFlags};
use thalweg_fold::SumsHead;
use thalweg_shm_pool::Object;

use crate::clock;
use crate::copying::CopyingPlane;
use crate::hearing::Message;
use crate::launch::Process;
use crate::ledger::{Base, Ledger, Lie, Order};
use crate::note::{Kind, Note, NOTE_BYTES};
use crate::routes::Outlet;
use crate::worker_pool::timeline::{Doing, Stretch};

/// The connection over which notes reach a worker inside the kernel.
pub(super) struct Route {
    pub outlet: Arc<Outlet>,
    /// The node's end of the worker's connection.
    pub socket: TcpStream,
}

/// A worker's optional connections, beside its Unix socket.
pub(super) struct Ways {
    pub route: Option<Route>,
    pub copying: Option<CopyingPlane>,
}

/// A worker whose process runs.
pub(super) struct Line {
    socket: UnixStream,
    route: Option<Route>,
    process: Box<dyn Process>,
    /// Connection for copies of updates and sums, if the data plane copies.
    copying: Option<CopyingPlane>,
    /// Number of the process.
    pub party: u16,
    /// When the launch of the process began, in nanoseconds of the monotonic clock.
    began: u64,
    /// Number of notes sent to the worker, modulo 2^16.
    sent: u16,
    /// Notes for which the Unix socket had no room. The number of slots in the pool bounds them: the ledger
    /// sends each update once, and again only after a refusal or a death.
    outbox: Vec<u8>,
    /// Number of fold orders that the worker has not answered.
    owed: usize,
    /// The last fold order that the worker got while it had no other: its sequence number and the time of
    /// sending.
    timed: Option<(u32, u64)>,
    /// When the worker was ordered to commit; `None` if it owes no commit.
    committing: Option<u64>,
    /// CPU time of the process in nanoseconds, as it reported last.
    pub cpu: u64,
    /// Whether the process has folded an update.
    pub has_worked: bool,
}

impl Line {
    pub fn new(
        (party, began): (u16, u64),
        socket: UnixStream,
        ways: Ways,
        process: Box<dyn Process>,
    ) -> Self {
        let Ways { route, copying } = ways;
        let (outbox, timed) = (Vec::new(), None);
        Self {
            socket,
            route,
            process,
            copying,
            party,
            began,
            sent: 0,
            outbox,
            owed: 0,
            timed,
            committing: None,
            cpu: 0,
            has_worked: false,
        }
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Memory of the process in bytes (PSS); 0 if the system does not say.
    pub fn memory(&self) -> u64 {
        self.process.memory()
    }

    /// Kills the process and waits until it has ended. After that it writes to no memory any more.
    pub fn end(mut self) {
        self.process.end();
        self.copying.into_iter().for_each(CopyingPlane::end);
    }

    pub fn hang_up(&self) {
        _ = self.socket.shutdown(Shutdown::Both);
        _ = self.route.as_ref().map(|route| route.socket.shutdown(Shutdown::Both));
    }

    /// Sends an order to the worker: inside the kernel if there is a route, else over the Unix socket as soon
    /// as that has room.
    pub fn tell(&mut self, round: u32, task: u32, order: Order) {
        let to = |kind| Note { round, ..Note::plain(0, self.party, task, kind) };
        let note = match order {
            Order::Begin => to(Kind::Begin),
            Order::Rollback => to(Kind::Rollback),
            Order::Commit => to(Kind::Commit),
            Order::Fold { sequence, name, weight } => Note { sequence, name, weight, ..to(Kind::Fold) },
            Order::Merge { .. } => return, // the commit goes with it: see `merge`
        };
        if note.kind == Kind::Fold {
            self.timed = (self.owed == 0).then(|| (note.sequence, clock::now()));
            self.owed += 1;
        }
        if note.kind == Kind::Commit {
            self.committing = Some(clock::now());
        }
        self.say(note);
    }

    /// Orders the worker to add the last commit of the worker with index `from`. It goes over the Unix socket: a
    /// head follows the note.
    pub fn merge(&mut self, round: u32, task: u32, from: usize, base: &Base) {
        let mut note = Note { round, ..Note::plain(0, self.party, task, Kind::Merge) };
        let head = base.head.encode();
        (note.sequence, note.name.slot) = (from as u32, base.slot);
        (note.number, note.following) = (self.sent, head.len() as u64);
        self.sent = self.sent.wrapping_add(1);
        self.outbox.extend(note.encode());
        self.outbox.extend(head);
        self.flush();
    }

    fn say(&mut self, note: Note) {
        let bytes = Note { number: self.sent, ..note }.encode();
        self.sent = self.sent.wrapping_add(1);
        if !self.route.as_ref().is_some_and(|route| route.outlet.send(&bytes)) {
            self.pass(&bytes);
        }
    }

    /// Sends a copy of an update, after the note about it.
    pub fn ship(&self, object: Arc<Object>) {
        self.copying.iter().for_each(|copying| copying.ship(object.clone()));
    }

    /// Orders the worker to send its sums. Returns the stream on which they arrive.
    #[cfg(feature = "baselines")]
    pub fn fetch(&mut self) -> io::Result<TcpStream> {
        let copying = self.copying.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let stream = copying.stream()?;
        self.say(Note::plain(0, self.party, 0, Kind::Send));
        Ok(stream)
    }

    /// CPU time in nanoseconds of the hops between the node and this worker.
    pub fn carrying(&self) -> u64 {
        self.copying.as_ref().map_or(0, CopyingPlane::cpu)
    }

    /// Sends a note over the Unix socket. The note's number tells the worker which notes precede it.
    pub fn pass(&mut self, note: &[u8; NOTE_BYTES]) {
        self.outbox.extend(note);
        self.flush();
    }

    /// Sends as many bytes as the socket has room for. If the worker has ended, the thread that reads from it
    /// finds out.
    pub fn flush(&mut self) {
        while !self.outbox.is_empty() {
            match send(&self.socket, &self.outbox, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return, // there is room again once the worker has answered
                Err(_) => return self.outbox.clear(),
            }
        }
    }

    /// The stretch of work that ends with this answer, if there is one.
    pub fn stretch(&mut self, worker: usize, Message { note, following }: &Message) -> Option<Stretch> {
        let end = clock::now();
        let (doing, start, updates) = match note.kind {
            Kind::Folded => (Doing::Fold, stated(following)?, 1),
            Kind::Committed => (Doing::Commit, self.committing.take()?, 0),
            Kind::Ready => (Doing::Start, self.began, 0),
            Kind::Merged => (Doing::Merge, self.committing?, 1),
            Kind::Refused
            | Kind::Begin
            | Kind::Rollback
            | Kind::Commit
            | Kind::Fold
            | Kind::Send
            | Kind::Merge => return None,
        };
        Some(Stretch { worker, doing, start, end, updates })
    }

    /// Records the times of an answer. If the worker was idle when it got the update, returns two times in
    /// nanoseconds: from note to object, and from note to answer.
    pub fn note_times(&mut self, Message { note, following }: &Message) -> Option<(u64, u64)> {
        let stated = stated(following);
        match note.kind {
            Kind::Committed => self.cpu = stated.map_or(self.cpu, |cpu| cpu.max(self.cpu)),
            Kind::Folded | Kind::Refused => self.owed = self.owed.saturating_sub(1),
            Kind::Begin
            | Kind::Rollback
            | Kind::Commit
            | Kind::Fold
            | Kind::Send
            | Kind::Ready
            | Kind::Merge
            | Kind::Merged => {}
        }
        self.has_worked |= note.kind == Kind::Folded;
        let (_, sent) =
            self.timed.take_if(|(timed, _)| note.kind == Kind::Folded && *timed == note.sequence)?;
        Some((stated?.checked_sub(sent)?, clock::now().checked_sub(sent)?))
    }
}

/// The time that a worker states after an answer, in nanoseconds.
fn stated(following: &[u8]) -> Option<u64> {
    following.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Passes a worker's message to the ledger.
///
/// # Errors
/// [`Lie`] if the message cannot be true.
pub(super) fn answer(
    ledger: &mut Ledger,
    (worker, party): (usize, u16),
    message: &Message,
) -> Result<(), Lie> {
    let Message { note, following } = message;
    if note.source != party || note.destination != 0 {
        return Err(Lie("that it is another worker"));
    }
    match note.kind {
        Kind::Folded => ledger.folded(worker, note.task, note.sequence, note.name.key),
        Kind::Refused => {
            ledger.refused(worker, note.task, note.sequence, &String::from_utf8_lossy(following))
        }
        Kind::Committed => {
            let head = following.get(8..).and_then(|head| SumsHead::decode(head).ok());
            let head = head.ok_or(Lie("a head of sums that is none"))?;
            ledger.committed(worker, note.task, Base { slot: note.name.slot, head })
        }
        Kind::Merged => Ok(()), // the commit that follows counts
        Kind::Ready if note.number == 0 => Ok(()),
        Kind::Ready => Err(Lie("that it is ready, when it has said more already")),
        Kind::Begin | Kind::Rollback | Kind::Commit | Kind::Fold | Kind::Send | Kind::Merge => {
            Err(Lie("what only its node may say"))
        }
    }
}
