//! A worker process that fails as it was ordered to.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::process::{getpid, kill_process, pidfd_getfd, pidfd_open, PidfdFlags, PidfdGetfdFlags, Signal};
use thalweg_shm_pool::Name;
use thalweg_workers::{work_with, Kind, Note};

/// The first line on the socket is the fault: `none`, or a kind of fault and its step, such as `die 7`, `hang
/// 3`, `babble 2`, `forge 2` or `lie 2`. `vanish 300` dies 300 microseconds after its first order.
pub fn run() {
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let Some(fault) = line(&mut socket) else { return };
    let other = socket.try_clone().unwrap();
    let (what, step) = fault.split_once(' ').unwrap_or((&fault, "0"));
    let number: u64 = step.parse().unwrap();
    let mut steps = 0;
    let mut at = |_| {
        steps += 1;
        match what {
            "vanish" if steps == 2 => vanish(Duration::from_micros(number)),
            "die" if steps == number => die(),
            "hang" if steps == number => loop {
                std::thread::park();
            },
            "babble" if steps == number => say(&other, &[0xff; 200]),
            "forge" if steps == number => say(&other, &note(99, 0).encode()),
            // Answers that look valid, with the right number and order, about an update that the worker was
            // not given.
            "lie" if steps == number => (1..20).for_each(|number| say(&other, &note(1, number).encode())),
            _ => {}
        }
    };
    if let Err(error) = work_with(socket, &mut at) {
        eprintln!("worker: {error}");
    }
}

/// Reads the first line, and no byte more; `None` if the node has closed the socket before its end.
fn line(socket: &mut UnixStream) -> Option<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while byte != *b"\n" {
        socket.read_exact(&mut byte).ok()?;
        line.extend(byte);
    }
    Some(String::from_utf8(line).unwrap().trim_end().to_owned())
}

pub fn die() {
    kill_process(getpid(), Signal::KILL).unwrap();
}

pub fn vanish(after: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(after);
        die();
    });
}

/// Sends bytes the way a worker sends its answers.
fn say(mut unix: &UnixStream, bytes: &[u8]) {
    match route() {
        Some(mut route) => _ = route.write_all(bytes), // the node may be gone already
        None => _ = unix.write_all(bytes),
    }
}

/// This process's connection for notes inside the kernel, if it has one.
fn route() -> Option<TcpStream> {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let opened = (3..40).filter_map(|fd| pidfd_getfd(&own, fd, PidfdGetfdFlags::empty()).ok());
    opened.map(OwnedFd::into).find(|socket: &TcpStream| socket.peer_addr().is_ok())
}

fn note(source: u16, number: u16) -> Note {
    let name = Name { slot: 0, generation: 1, key: [1; 16] };
    let (destination, kind) = (0, Kind::Folded);
    Note {
        destination,
        source,
        task: 1,
        round: 0,
        sequence: 0,
        kind,
        number,
        name,
        weight: 1.0,
        following: 0,
    }
}
