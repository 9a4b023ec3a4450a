//! The far end's order of calls: a call that follows calls which the near end has answered must wait for
//! them.
//!
//! A program that waits for each answer before its next call expects the server to get these calls one after
//! the other. If the near end answers, several calls travel at once. So each call lists the earlier calls
//! that the near end has answered and the server has not. The far end holds the call back until those are
//! over. The wait costs a round trip between far end and server, which are close to each other, but none over
//! the link.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use http::HeaderMap;
use tokio::sync::watch;

/// Header: the number of a call that the near end answers.
pub(super) const ANSWERED: &str = "thalweg-answered";
/// Header: the numbers of the calls that this call must follow.
pub(super) const AFTER: &str = "thalweg-after";

/// The calls of one connection that the near end answers and the server has not answered yet.
#[derive(Default)]
pub(crate) struct Order {
    open: Arc<watch::Sender<BTreeSet<u64>>>,
    calls: AtomicU64,
}

/// A call's place in the order. Dropping it marks the call as over.
#[derive(Default)]
pub(super) struct Turn {
    number: Option<u64>,
    after: BTreeSet<u64>,
    open: Arc<watch::Sender<BTreeSet<u64>>>,
}

impl Order {
    /// Number of calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Starts a call. Removes the near end's headers about the order.
    pub(super) fn enter(&self, headers: &mut HeaderMap) -> Turn {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let number = take(headers, ANSWERED).and_then(|text| text.parse().ok());
        let after = take(headers, AFTER).unwrap_or_default();
        let after = after.split(',').filter_map(|text| text.parse().ok()).collect();
        if let Some(number) = number {
            self.open.send_if_modified(|open| open.insert(number));
        }
        Turn { number, after, open: self.open.clone() }
    }
}

/// Removes a header and returns its value.
fn take(headers: &mut HeaderMap, name: &str) -> Option<String> {
    headers.remove(name).and_then(|value| value.to_str().ok().map(str::to_owned))
}

impl Turn {
    /// Waits until all calls that this call must follow (those in `after`) are over.
    pub async fn comes(&self) {
        // Ignore an error: the order is gone, and so are the calls that this call must follow.
        let _ = self.open.subscribe().wait_for(|open| open.is_disjoint(&self.after)).await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.open.send_if_modified(|open| open.remove(&number));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is how tests report
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn headers(number: Option<u64>, after: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("te", "trailers".parse().unwrap());
        number.map(|number| headers.insert(ANSWERED, number.to_string().parse().unwrap()));
        headers.insert(AFTER, after.parse().unwrap());
        headers
    }

    #[test]
    fn a_call_waits_for_those_that_were_answered_before_it() {
        let order = Order::default();
        let mut first = headers(Some(1), "");
        let one = order.enter(&mut first);
        assert_eq!(first.len(), 1, "the server sees its own headers alone");
        let two = order.enter(&mut headers(Some(2), "1"));
        let free = order.enter(&mut headers(None, "99,nonsense,"));
        assert!(one.comes().now_or_never().is_some() && free.comes().now_or_never().is_some());
        assert!(two.comes().now_or_never().is_none());
        let three = order.enter(&mut headers(None, "1,2"));
        drop(one);
        assert!(two.comes().now_or_never().is_some() && three.comes().now_or_never().is_none());
        drop(two);
        assert!(three.comes().now_or_never().is_some());
        assert_eq!(order.calls(), 4);
    }
}
