//! The state that all receiving sides share: the peer's offers, credit for chunks, the chunks that have
//! arrived, and the tasks to wake.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Waker};

use thalweg_transport::Result;
use thalweg_verbs::Device;
use thalweg_wire::FrameHeader;

use crate::offers::Offers;
use crate::pool::Pool;
use crate::sides::{Came, Landing};
use crate::stock::Stock;

pub(crate) struct Arrivals {
    pub(crate) stock: Stock,
    pub(crate) offers: Offers,
    came: VecDeque<Came>,
    driver: Option<Waker>,
    receiver: Option<Waker>,
}

impl Arrivals {
    pub(crate) fn new(device: Arc<dyn Device>, pool: Arc<Pool>) -> Self {
        Self {
            stock: Stock::new(device, pool),
            offers: Offers::default(),
            came: VecDeque::new(),
            driver: None,
            receiver: None,
        }
    }

    /// Adds an offer of the peer. `granted` is the number of chunks that were granted and have not arrived.
    ///
    /// # Errors
    /// As [`Offers::add`].
    pub(crate) fn offered(&mut self, number: u64, header: FrameHeader, granted: usize) -> Result<()> {
        self.offers.add(number, header, granted + self.len())
    }

    /// The same for a peer that may leave out numbers, see [`Offers::add_after_gap`].
    ///
    /// # Errors
    /// As [`Offers::add`].
    pub(crate) fn lent(&mut self, number: u64, header: FrameHeader, granted: usize) -> Result<()> {
        self.offers.add_after_gap(number, header, granted + self.len())
    }

    /// See [`Offers::next`].
    pub(crate) fn next_offer(&mut self, count: u64) -> Option<(u64, FrameHeader)> {
        self.offers.next(count, &mut self.stock)
    }

    /// See [`Offers::placed`].
    pub(crate) fn placed(&mut self, number: u64, length: u64) -> bool {
        self.offers.placed(number, length, &mut self.stock)
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

    /// Drops the waiting offers and the chunks that have arrived.
    pub(crate) fn stop(&mut self) {
        self.offers.clear();
        self.came.clear();
        self.wake();
    }
}
