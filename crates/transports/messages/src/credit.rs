//! What the other end has granted, and what of it is used up.

use tokio::sync::{watch, Mutex};

/// Credit in one direction of a link; in bytes, counted from the link's beginning.
pub(crate) struct Credit {
    account: watch::Sender<Account>,
    /// Those who wait, in the order they came.
    queue: Mutex<()>,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    used: u64,
    granted: u64,
    window: u64,
}

impl Credit {
    /// Nothing is used of `window` bytes.
    pub(crate) fn new(window: u64) -> Self {
        let account = Account { used: 0, granted: window, window };
        Self { account: watch::Sender::new(account), queue: Mutex::new(()) }
    }

    /// The other end grants, as a total. An older grant that comes late changes nothing.
    pub(crate) fn grant(&self, total: u64) {
        self.account.send_if_modified(|account| {
            let more = total > account.granted;
            account.granted = account.granted.max(total);
            more
        });
    }

    /// Uses `bytes`, if they are there.
    pub(crate) fn try_take(&self, bytes: u64) -> Option<Taken<'_>> {
        let mut enough = false;
        self.account.send_if_modified(|account| {
            enough = account.used.saturating_add(bytes) <= account.granted;
            account.used += if enough { bytes } else { 0 };
            false // nobody waits for less
        });
        enough.then(|| Taken { credit: self, bytes })
    }

    /// Uses `bytes` as soon as they are there.
    pub(crate) async fn take(&self, bytes: u64) -> Taken<'_> {
        let _first = self.queue.lock().await;
        let mut changed = self.account.subscribe();
        loop {
            if let Some(taken) = self.try_take(bytes) {
                return taken;
            }
            // It fails when the sender is gone, which we hold.
            let _ = changed.changed().await;
        }
    }

    /// Whether `bytes` could be taken now.
    pub(crate) fn has(&self, bytes: u64) -> bool {
        let account = self.account.borrow();
        account.used.saturating_add(bytes) <= account.granted
    }

    /// Whether the other end has taken in nearly all that was sent, as far as its grants tell: it grants by quarters.
    pub(crate) fn is_drained(&self) -> bool {
        let account = *self.account.borrow();
        let taken_in = account.granted.saturating_sub(account.window);
        account.used.saturating_sub(taken_in) <= account.window / 4
    }

    /// Whether all that was sent is taken in, as far as grants tell.
    pub(crate) fn is_idle(&self) -> bool {
        let account = *self.account.borrow();
        account.used <= account.granted.saturating_sub(account.window)
    }
}

/// Credit that is used. Dropped, it is given back; what has gone out is kept.
pub(crate) struct Taken<'a> {
    credit: &'a Credit,
    bytes: u64,
}

impl Taken<'_> {
    /// It has gone out, or may have.
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

/// What this end grants.
#[derive(Debug)]
pub(crate) struct Allowance {
    window: u64,
    granted: u64,
    taken_in: u64,
}

impl Allowance {
    /// The other end may send `window` bytes.
    pub(crate) fn new(window: u64) -> Self {
        Self { window, granted: window, taken_in: 0 }
    }

    /// What has been granted in all.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    /// What may be under way.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// `bytes` were taken in, or will never come. Whether to tell the other end, which is so for each quarter.
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
        credit.grant(90); // late
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
