//! A template process that dies as its seed says. Since fork is unsafe here, it starts the worker's program
//! instead. The node sees no difference but the time.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use thalweg_rng::Rng;
use thalweg_workers::{forked, next_request};

use super::worker::{die, vanish};
use super::{below, STARTED, TEMPLATE};

/// How a template fails.
#[derive(Clone, Copy)]
enum Fault {
    None,
    /// Dies at this step. Each worker takes four steps.
    Die(u64),
    /// Hangs from this step on.
    Hang(u64),
}

pub fn run() {
    let fault = fault();
    let mut steps = 0;
    let mut at = || {
        steps += 1;
        match fault {
            Fault::Die(step) if step == steps => die(),
            Fault::Hang(step) if step == steps => loop {
                std::thread::park();
            },
            _ => {}
        }
    };
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut workers = Vec::new();
    at();
    while let Ok(Some(end)) = next_request(&socket) {
        at();
        let mut worker = Command::new(std::env::current_exe().unwrap());
        // Dropping the command closes this process's copy of the worker's end.
        let worker =
            worker.env_remove(TEMPLATE).stdin(Stdio::from(end)).stdout(Stdio::null()).spawn().unwrap();
        at();
        let reported = forked(&socket, worker.id());
        workers.push(worker);
        if reported.is_err() {
            return;
        }
        at();
        workers.retain_mut(|worker| worker.try_wait().unwrap().is_none());
    }
}

/// The fault of this template, drawn from the seed.
fn fault() -> Fault {
    let seed: u64 = std::env::var(TEMPLATE).unwrap().parse().unwrap();
    if seed == 0 {
        return Fault::None;
    }
    let path = std::env::var_os(STARTED).unwrap();
    let number = std::fs::metadata(&path).unwrap().len();
    std::fs::File::options().append(true).open(&path).unwrap().write_all(b".").unwrap();
    let mut rng = Rng::new(&[seed, number, 77]);
    match below(&mut rng, 20) {
        0..4 => Fault::None,
        4..8 => {
            vanish(Duration::from_micros(rng.up_to(20_000)));
            Fault::None
        }
        8 => Fault::Hang(rng.up_to(6)),
        _ => Fault::Die(rng.up_to(6)),
    }
}
