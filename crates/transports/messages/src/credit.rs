//! Flow control by credit: how much the other end allows this end to send, and how much this end allows the
//! other.

use tokio::sync::{watch, Mutex};

/// Credit to send in one direction of a link, by cost. Totals count from the link's beginning.
pub(crate) struct Credit {
    account: watch::Sender<Account>,
    /// Makes waiting senders take credit in the order of their arrival.
    queue: Mutex<()>,
}

/// The totals of a [`Credit`].
#[derive(Debug, Clone, Copy)]
struct Account {
    /// Total cost sent or reserved.
    used: u64,
    /// Total cost that the other end permits.
    granted: u64,
    window: u64,
}

impl Credit {
    /// A credit of `window`. None of it is used yet.
    pub(crate) fn new(window: u64) -> Self {
        let account = Account { used: 0, granted: window, window };
        Self { account: watch::Sender::new(account), queue: Mutex::new(()) }
    }

    /// Processes a grant: the total that the other end has permitted since the link began. A grant that comes late has
    /// a smaller total, and changes nothing.
    pub(crate) fn grant(&self, total: u64) {
        self.account.send_if_modified(|account| {
            let more = total > account.granted;
            account.granted = account.granted.max(total);
            more
        });
    }

    /// Reserves `bytes` of credit. Returns `None` if less credit is left.
    pub(crate) fn try_take(&self, bytes: u64) -> Option<Taken<'_>> {
        let mut enough = false;
        self.account.send_if_modified(|account| {
            enough = account.used.saturating_add(bytes) <= account.granted;
            account.used += if enough { bytes } else { 0 };
            // A waiting sender can do nothing with less credit, so wake nobody.
            false
        });
        enough.then(|| Taken { credit: self, bytes })
    }

    /// Reserves `bytes` of credit; waits until so much credit is left.
    pub(crate) async fn take(&self, bytes: u64) -> Taken<'_> {
        let _first = self.queue.lock().await;
        let mut changed = self.account.subscribe();
        loop {
            if let Some(taken) = self.try_take(bytes) {
                return taken;
            }
            // This cannot fail: we hold the sender.
            let _ = changed.changed().await;
        }
    }

    /// Whether `bytes` could be reserved now.
    pub(crate) fn has(&self, bytes: u64) -> bool {
        let account = self.account.borrow();
        account.used.saturating_add(bytes) <= account.granted
    }

    /// Whether at most a quarter of the window is unconfirmed. Grants cannot show less: the receiver sends
    /// one for each quarter of its window.
    pub(crate) fn is_drained(&self) -> bool {
        let account = *self.account.borrow();
        let taken_in = account.granted.saturating_sub(account.window);
        account.used.saturating_sub(taken_in) <= account.window / 4
    }

    /// Whether the grants show that the receiver has taken everything that was sent.
    pub(crate) fn is_idle(&self) -> bool {
        let account = *self.account.borrow();
        account.used <= account.granted.saturating_sub(account.window)
    }
}

/// Reserved credit. Dropping it returns the credit, unless [`Taken::keep`] was called.
pub(crate) struct Taken<'a> {
    credit: &'a Credit,
    bytes: u64,
}

impl Taken<'_> {
    /// Uses the credit for good: the message was sent, or may have been sent.
    pub(crate) fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let bytes = self.bytes;
        self.credit.account.send_if_modified(|account| {
            account.used -= bytes;
            bytes > 0
        });
    }
}

/// The credit that this end grants to the other, by cost.
#[derive(Debug)]
pub(crate) struct Allowance {
    window: u64,
    granted: u64,
    /// Total cost of the messages that the application has taken or that will never arrive.
    taken_in: u64,
}

impl Allowance {
    /// Permits the other end to send `window`.
    pub(crate) fn new(window: u64) -> Self {
        Self { window, granted: window, taken_in: 0 }
    }

    /// Total cost granted.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    /// Maximum cost that may be in flight.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// Notes that `bytes` were taken, or will never arrive. Returns whether to send a grant, which is due
    /// after each quarter of the window.
    pub(crate) fn take_in(&mut self, bytes: u64) -> bool {
        self.taken_in = self.taken_in.saturating_add(bytes);
        let due = self.taken_in.saturating_add(self.window);
        let tell = due - self.granted >= (self.window / 4).max(1);
        self.granted = if tell { due } else { self.granted };
        tell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_used_than_granted() {
        let credit = Credit::new(100);
        credit.try_take(60).unwrap().keep();
        assert!(credit.try_take(41).is_none() && !credit.is_drained());
        drop(credit.try_take(40).unwrap());
        credit.try_take(40).unwrap().keep();
        // A grant with an older total changes nothing.
        credit.grant(90);
        assert!(!credit.has(1));
        credit.grant(175);
        assert!(credit.is_drained() && !credit.is_idle() && credit.has(75) && !credit.has(76));
        credit.grant(200);
        assert!(credit.is_idle());
    }

    #[tokio::test]
    async fn those_who_wait_are_served_in_order() {
        let credit = Credit::new(10);
        credit.take(10).await.keep();
        let large = async {
            credit.take(10).await.keep();
            credit.is_idle()
        };
        let small = async {
            credit.take(1).await.keep();
            credit.has(0)
        };
        let grants = async {
            credit.grant(15);
            tokio::task::yield_now().await;
            assert!(credit.has(5), "the second in the queue went first");
            credit.grant(20);
            tokio::task::yield_now().await;
            credit.grant(21);
        };
        tokio::join!(large, small, grants);
        assert!(!credit.has(1));
    }

    #[test]
    fn a_receiver_grants_by_quarters() {
        let mut allowance = Allowance::new(100);
        assert!(!allowance.take_in(24) && allowance.granted() == 100);
        assert!(allowance.take_in(1) && allowance.granted() == 125);
        assert!(allowance.take_in(u64::MAX) && allowance.granted() == u64::MAX);
    }
}
