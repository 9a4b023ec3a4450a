//! Helpers for tests with pairs of a pretend device.

use std::task::{Context, Waker};

use crate::{Device, Done, Error, Pair};

/// After this many steps everything that a test has started is done.
const ENOUGH: usize = 1_000;

/// Both ends of a connected pair.
pub type Ends = (Box<dyn Pair>, Box<dyn Pair>);

/// Makes two ends and connects them to each other.
///
/// # Errors
/// Those of the devices.
pub fn connected(a: &dyn Device, b: &dyn Device, notes: usize) -> Result<Ends, Error> {
    let (mut first, mut second) = (a.pair(notes)?, b.pair(notes)?);
    first.connect(&second.endpoint())?;
    second.connect(&first.endpoint())?;
    Ok((first, second))
}

/// Runs one step of a pair.
pub fn step(pair: &mut Box<dyn Pair>, done: &mut Vec<Done>) {
    let _ = pair.poll(&mut Context::from_waker(Waker::noop()), done);
}

/// Runs a pair until it has nothing to do. Returns its events.
pub fn settle(pair: &mut Box<dyn Pair>) -> Vec<Done> {
    let mut done = Vec::new();
    (0..ENOUGH).for_each(|_| step(pair, &mut done));
    done
}
