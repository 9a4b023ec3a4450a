//! The state that all receiving sides share: the peer's offers, credit for chunks, the chunks that have
//! arrived, and the tasks to wake.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Waker};

use thalweg_transport::Result;
use thalweg_verbs::Device;

use crate::extent::{Extent, Part};
use crate::offers::Offers;
use crate::pool::Pool;
use crate::sides::{Came, Landing};
use crate::stock::Stock;

pub(crate) struct Arrivals {
    pub(crate) stock: Stock,
    pub(crate) offers: Offers,
    came: VecDeque<Came>,
    /// Parts in `came` that the peer has withdrawn since.
    left: BTreeSet<u64>,
    /// The part that is being delivered, or was last, and whether the peer has withdrawn it.
    delivered: Option<(u64, bool)>,
    driver: Option<Waker>,
    receiver: Option<Waker>,
}

impl Arrivals {
    pub(crate) fn new(device: Arc<dyn Device>, pool: Arc<Pool>) -> Self {
        Self {
            stock: Stock::new(device, pool),
            offers: Offers::default(),
            came: VecDeque::new(),
            left: BTreeSet::new(),
            delivered: None,
            driver: None,
            receiver: None,
        }
    }

    /// Handles an offer of a peer that writes. `granted` is the number of parts that were granted and have not
    /// arrived.
    ///
    /// # Errors
    /// As [`Offers::add`] and [`Offers::ready`].
    pub(crate) fn offered(&mut self, number: u64, extent: Extent, granted: usize) -> Result<()> {
        self.offers.add(number, extent)?;
        self.ready(number, granted)
    }

    /// Adds the next part of the extent that was offered last.
    ///
    /// # Errors
    /// As [`Offers::ready`].
    pub(crate) fn ready(&mut self, number: u64, granted: usize) -> Result<()> {
        self.offers.ready(number, granted + self.len())
    }

    /// The same for a peer that may leave out numbers, see [`Offers::ready_after_gap`].
    ///
    /// # Errors
    /// As [`Offers::ready`].
    pub(crate) fn lent(&mut self, number: u64, granted: usize) -> Result<()> {
        self.offers.ready_after_gap(number, granted + self.len())
    }

    /// Withdraws a part for the peer.
    ///
    /// # Errors
    /// As [`Offers::withdraw`].
    pub(crate) fn withdraw(&mut self, number: u64) -> Result<()> {
        self.offers.withdraw(number)?;
        if self.came.iter().any(|came| came.number == number) {
            self.left.insert(number);
        }
        self.delivered = self.delivered.map(|(other, is_left)| (other, is_left || other == number));
        Ok(())
    }

    /// Whether the peer has withdrawn the part that is being delivered.
    pub(crate) fn is_left(&self) -> bool {
        self.delivered.is_some_and(|(_, is_left)| is_left)
    }

    /// See [`Offers::next`].
    pub(crate) fn next_offer(&mut self, count: u64) -> Option<(u64, Part)> {
        self.offers.next(count, &mut self.stock)
    }

    /// See [`Offers::placed`].
    pub(crate) fn placed(&mut self, number: u64, bytes: u64) -> bool {
        self.offers.placed(number, bytes, &mut self.stock)
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

    /// Queues a part that has arrived.
    pub(crate) fn push(&mut self, came: Came) {
        self.came.push_back(came);
    }

    /// Number of parts that have arrived and are not delivered yet.
    pub(crate) fn len(&self) -> usize {
        self.came.len()
    }

    /// The next part to deliver.
    pub(crate) fn next(&mut self) -> Option<Came> {
        let came = self.came.pop_front()?;
        self.delivered = Some((came.number, self.left.remove(&came.number)));
        Some(came)
    }

    /// Returns the credit of a part that was delivered or dropped.
    pub(crate) fn done(&mut self, length: u64, landing: Landing) {
        self.stock.done(length, landing);
        self.wake();
    }

    /// Drops the waiting offers and the parts that have arrived.
    pub(crate) fn stop(&mut self) {
        self.offers.clear();
        self.came.clear();
        self.wake();
    }
}
