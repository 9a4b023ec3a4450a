//! What tests do with pairs of a pretend device.

use std::task::{Context, Waker};

use crate::{Device, Done, Error, Pair};

/// So many steps end whatever a test has begun.
const ENOUGH: usize = 1_000;

/// Both ends of what two devices share.
pub type Ends = (Box<dyn Pair>, Box<dyn Pair>);

/// Two pairs that have joined each other.
///
/// # Errors
/// Of the devices.
pub fn connected(a: &dyn Device, b: &dyn Device, notes: usize) -> Result<Ends, Error> {
    let (mut first, mut second) = (a.pair(notes)?, b.pair(notes)?);
    first.connect(&second.endpoint())?;
    second.connect(&first.endpoint())?;
    Ok((first, second))
}

/// Lets a pair go on by one step.
pub fn step(pair: &mut Box<dyn Pair>, done: &mut Vec<Done>) {
    let _ = pair.poll(&mut Context::from_waker(Waker::noop()), done);
}

/// Lets a pair go on until it has nothing to do.
pub fn settle(pair: &mut Box<dyn Pair>) -> Vec<Done> {
    let mut done = Vec::new();
    (0..ENOUGH).for_each(|_| step(pair, &mut done));
    done
}
