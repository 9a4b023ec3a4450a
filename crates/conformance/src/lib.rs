//! Tests of the transport contract, run for a transport by one line: [`suite!`].
//!
//! Each public function of the modules below tests one sentence of the docs of `thalweg-transport`. A
//! transport describes itself by a [`Factory`] and writes [`suite!`]. A test that the transport's
//! capabilities exclude prints why it is skipped. No test sleeps: tests wait for messages and for what the
//! sink has seen. A long timeout turns a hang into a failure.
#![forbid(unsafe_code)]
// These are tests: they report a failure by a panic.
#![allow(clippy::unwrap_used, clippy::panic)]

pub mod addresses;
pub mod cancelling;
pub mod chunks;
pub mod closing;
pub mod control;
pub mod counting;
mod damage;
mod factory;
pub mod flow;
pub mod groups;
mod pair;
pub mod preparing;
mod recorder;
mod relay;
mod suite;
pub mod trust;
pub mod unauthenticated_peers;
mod updates;
mod waiting;

pub use damage::{damage, repair, Rng};
pub use factory::{Factory, Intruder};
pub use pair::{Pair, Pump};
pub use recorder::{Recorded, Recorder, Router};
pub use relay::{Gate, Relay};
pub(crate) use suite::boxed;
pub use suite::Sentence;
pub use updates::{outgoing, pattern, shared_pattern, update_id};
pub use waiting::chunks_keep_no_message_away;

use std::time::Duration;

/// Timeout that turns a hang into a failure. No test takes nearly as long.
pub const GUARD: Duration = Duration::from_secs(120);

/// Tests that depend on which task runs first. They run on one thread; otherwise another program on this
/// machine could decide the order.
const IN_TURN: [&str; 1] = ["control_overtakes_a_running_update"];

/// Runs one test of the contract on a runtime of its own: with two worker threads, or with one for the tests
/// in `IN_TURN`.
///
/// # Panics
/// If the test fails or does not end within [`GUARD`].
pub fn run(name: &str, make: &dyn Fn() -> Factory, sentence: Sentence) {
    let mut builder = match IN_TURN.contains(&name) {
        true => tokio::runtime::Builder::new_current_thread(),
        false => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let factory = make();
        if let Some(missing) = &factory.missing {
            return skip(missing);
        }
        let outcome = tokio::time::timeout(GUARD, sentence(&factory)).await;
        assert!(outcome.is_ok(), "{name} hangs: not done after {GUARD:?}");
    });
    runtime.shutdown_background();
}

/// Prints why a test does not apply.
pub(crate) fn skip(why: &str) {
    println!("skipped: {why}");
}

/// All tests as functions of one type.
#[doc(hidden)]
pub mod sentences {
    crate::contract! { boxed {} }
    crate::contract_on_unauthenticated_peers! { boxed {} }
}

#[cfg(test)]
mod tests {
    /// The macro must list every test, because others would never run.
    #[test]
    fn the_macro_lists_every_sentence() {
        let listed = include_str!("suite.rs");
        let modules = [
            include_str!("addresses.rs"),
            include_str!("cancelling.rs"),
            include_str!("chunks.rs"),
            include_str!("closing.rs"),
            include_str!("control.rs"),
            include_str!("counting.rs"),
            include_str!("flow.rs"),
            include_str!("groups.rs"),
            include_str!("unauthenticated_peers.rs"),
            include_str!("preparing.rs"),
            include_str!("trust.rs"),
        ];
        let mut sentences = 0;
        for line in modules.iter().flat_map(|text| text.lines()) {
            if let Some(rest) = line.strip_prefix("pub async fn ") {
                let name = rest.split('(').next().unwrap();
                let entry = format!("                {name}\n");
                assert!(listed.contains(&entry), "the suite does not list {name}");
                sentences += 1;
            }
        }
        assert!(sentences > 40, "only {sentences} sentences found");
    }
}
