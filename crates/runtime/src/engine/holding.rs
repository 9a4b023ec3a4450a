//! Watches links whose broker has raised an alarm and accepts no messages. Meanwhile liveness must not count
//! the time against their peers.

use std::sync::Arc;
use std::time::Duration;

use thalweg_transport::Link;
use tokio::task::JoinSet;
use tokio::time::{interval, MissedTickBehavior};

/// Interval of the checks: well below the default liveness, after which a link without progress ends.
const LOOK: Duration = Duration::from_millis(500);

/// Calls `held` repeatedly while `link` is held up. The first call of each such period gives the reason. Ends
/// when dropped.
pub(crate) fn watch(link: Arc<dyn Link>, held: impl Fn(Option<String>) + Send + 'static) -> JoinSet<()> {
    let mut task = JoinSet::new();
    if link.capabilities().broker {
        task.spawn(look(link, held));
    }
    task
}

async fn look(link: Arc<dyn Link>, held: impl Fn(Option<String>) + Send + 'static) {
    let mut clock = interval(LOOK);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known = false;
    loop {
        clock.tick().await;
        let why = link.held();
        let first = !std::mem::replace(&mut known, why.is_some());
        if let Some(why) = why {
            held(first.then_some(why));
        }
    }
}
