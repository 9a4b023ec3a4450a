//! A worker that fails as it was told.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::process::{getpid, kill_process, Signal};
use thalweg_node::{work_with, Kind, Note};
use thalweg_pool::Name;

/// `none`, or what happens at which step: `die 7`, `hang 3`, `babble 2`, `forge 2`.
pub fn run(fault: &str) {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut other = socket.try_clone().unwrap();
    let (what, step) = fault.split_once(' ').unwrap_or((fault, "0"));
    let mut left: u64 = step.parse().unwrap();
    let mut at = |_| {
        left = left.wrapping_sub(1);
        match what {
            "die" if left == 0 => kill_process(getpid(), Signal::KILL).unwrap(),
            "hang" if left == 0 => loop {
                std::thread::park();
            },
            "babble" if left == 0 => other.write_all(&[0xff; 200]).unwrap(),
            "forge" if left == 0 => other.write_all(&forged().encode()).unwrap(),
            _ => {}
        }
    };
    if let Err(error) = work_with(socket, &mut at) {
        eprintln!("worker: {error}");
    }
}

/// Another worker's word.
fn forged() -> Note {
    let name = Name { slot: 0, generation: 1, key: [1; 16] };
    let (destination, source, kind) = (0, 99, Kind::Folded);
    Note { destination, source, task: 1, round: 0, sequence: 0, kind, name, weight: 1.0, following: 0 }
}
