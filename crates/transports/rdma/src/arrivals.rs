//! The state that all receiving sides share: credit for chunks, the chunks that have arrived, and the tasks
//! to wake.

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

    /// Registers the waker of the task that drives this side.
    pub(crate) fn driver_waits(&mut self, context: &Context<'_>) {
        self.driver = Some(context.waker().clone());
    }

    /// Registers the waker of `receive`.
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

    /// Queues a chunk that has arrived.
    pub(crate) fn push(&mut self, came: Came) {
        self.came.push_back(came);
    }

    /// Number of chunks that have arrived and are not delivered yet.
    pub(crate) fn len(&self) -> usize {
        self.came.len()
    }

    /// The next chunk to deliver.
    pub(crate) fn next(&mut self) -> Option<Came> {
        self.came.pop_front()
    }

    /// Returns the credit of a chunk that was delivered or dropped.
    pub(crate) fn done(&mut self, length: u64, landing: Landing) {
        self.stock.done(length, landing);
        self.wake();
    }

    /// Drops the chunks that have arrived.
    pub(crate) fn stop(&mut self) {
        self.came.clear();
        self.wake();
    }
}
