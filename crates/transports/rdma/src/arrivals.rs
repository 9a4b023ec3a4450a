//! What every receiving side has: credit for chunks, those that have come, and whom to wake.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Waker};

use thalweg_verbs::Device;

use crate::pool::Pool;
use crate::sides::{Came, Landing};
use crate::stock::Stock;

pub(crate) struct Arrivals {
    pub(crate) stock: Stock,
    came: VecDeque<Came>,
    driver: Option<Waker>,
    receiver: Option<Waker>,
}

impl Arrivals {
    pub(crate) fn new(device: Arc<dyn Device>, pool: Arc<Pool>) -> Self {
        Self { stock: Stock::new(device, pool), came: VecDeque::new(), driver: None, receiver: None }
    }

    /// The driver waits.
    pub(crate) fn driver_waits(&mut self, context: &Context<'_>) {
        self.driver = Some(context.waker().clone());
    }

    /// Whoever receives waits.
    pub(crate) fn receiver_waits(&mut self, context: &Context<'_>) {
        self.receiver = Some(context.waker().clone());
    }

    pub(crate) fn wake_driver(&mut self) {
        self.driver.take().into_iter().for_each(Waker::wake);
    }

    pub(crate) fn wake_receiver(&mut self) {
        self.receiver.take().into_iter().for_each(Waker::wake);
    }

    pub(crate) fn wake(&mut self) {
        self.wake_driver();
        self.wake_receiver();
    }

    /// A chunk has come.
    pub(crate) fn push(&mut self, came: Came) {
        self.came.push_back(came);
    }

    /// How many have come and are not taken.
    pub(crate) fn len(&self) -> usize {
        self.came.len()
    }

    /// The next that has come.
    pub(crate) fn next(&mut self) -> Option<Came> {
        self.came.pop_front()
    }

    /// A chunk is taken or dropped, and its credit is free.
    pub(crate) fn done(&mut self, length: u64, landing: Landing) {
        self.stock.done(length, landing);
        self.wake();
    }

    /// Drops what has come.
    pub(crate) fn stop(&mut self) {
        self.came.clear();
        self.wake();
    }
}
