//! The transport contract as tests; one macro line runs them all.
//!
//! Each public function of the modules below is one sentence of the docs of `thalweg-transport`. A transport
//! says what it is in a [`Factory`] and writes [`suite!`]; sentences that its capabilities exclude print why
//! they are skipped. No test sleeps: they wait for messages and for what the sink has seen, and a generous
//! limit turns a hang into a failure.
#![forbid(unsafe_code)]
// A library of tests: a panic is how it reports.
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
pub use recorder::{Recorder, Router, Seen};
pub use relay::{Gate, Relay};
pub(crate) use suite::boxed;
pub use suite::Sentence;
pub use updates::{outgoing, pattern, shared_pattern, update_id};
pub use waiting::chunks_keep_no_message_away;

use std::time::Duration;

/// What turns a hang into a failure; nothing takes nearly as long.
pub const GUARD: Duration = Duration::from_secs(120);

/// Sentences about who comes first among tasks: they take turns on one thread, else another program that is given a core
/// decides it.
const IN_TURN: [&str; 1] = ["control_overtakes_a_running_update"];

/// Runs one sentence of the contract on a runtime of its own with two workers, or with one thread if turns matter.
///
/// # Panics
/// When the sentence does not hold, or does not end within [`GUARD`].
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

/// Says why a sentence does not apply.
pub(crate) fn skip(why: &str) {
    println!("skipped: {why}");
}

/// All sentences as functions of one type.
#[doc(hidden)]
pub mod sentences {
    crate::contract! { boxed {} }
    crate::contract_on_unauthenticated_peers! { boxed {} }
}

#[cfg(test)]
mod tests {
    /// A sentence that the macro forgets would never run.
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
