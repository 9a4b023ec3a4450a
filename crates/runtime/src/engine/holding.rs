//! Watches for links that are held up because their broker has raised an alarm and accepts no messages. That
//! time must not count as silence of their peers.

use std::sync::Arc;
use std::time::Duration;

use thalweg_transport::Link;
use tokio::task::JoinSet;
use tokio::time::{interval, MissedTickBehavior};

/// Interval of the checks: well below the default liveness, after which a link without progress ends.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

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
    let mut clock = interval(CHECK_INTERVAL);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut was_held = false;
    loop {
        clock.tick().await;
        let why = link.held();
        let first = !std::mem::replace(&mut was_held, why.is_some());
        if let Some(why) = why {
            held(first.then_some(why));
        }
    }
}
