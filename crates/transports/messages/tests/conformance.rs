//! Runs the transport contract's tests over the switchboard: with a group, without one, with loss and with
//! duplicates.

use std::sync::Arc;

use thalweg_conformance::Factory;
use thalweg_messages::Messages;
use thalweg_testkit::switchboard::{Habits, Switchboard};

fn factory(change: impl FnOnce(&mut Habits)) -> Factory {
    let mut habits = Habits::default();
    change(&mut habits);
    Factory::new(Arc::new(Messages::new(Switchboard::new(habits))), "board://test:0")
}

mod group {
    thalweg_conformance::suite!(crate::factory(|_| {}));
    thalweg_conformance::unauthenticated_peers!(crate::factory(|_| {}));
}

mod no_group {
    thalweg_conformance::suite!(crate::factory(|habits| habits.nature.group = false));
    thalweg_conformance::unauthenticated_peers!(crate::factory(|habits| habits.nature.group = false));
}

/// Messages may arrive twice, and the listener does not learn of a member's end.
mod duplicates {
    thalweg_conformance::suite!(crate::factory(|habits| {
        habits.duplication = 300_000;
        habits.tells_end = false;
    }));
    thalweg_conformance::unauthenticated_peers!(crate::factory(|habits| {
        habits.duplication = 300_000;
        habits.tells_end = false;
    }));
}

/// Chunks may get lost, as in MQTT with QoS 0.
mod lossy {
    thalweg_conformance::suite!(crate::factory(|habits| {
        habits.loss = 50_000;
        habits.nature.lossy = true;
    }));
    thalweg_conformance::unauthenticated_peers!(crate::factory(|habits| {
        habits.loss = 50_000;
        habits.nature.lossy = true;
    }));
}

/// Small messages and a small window, so control messages have many parts.
mod small {
    thalweg_conformance::suite!(crate::factory(|habits| {
        habits.nature = thalweg_messages::Nature { max_message: 20_000, window: 100_000, ..habits.nature };
    }));
    thalweg_conformance::unauthenticated_peers!(crate::factory(|habits| {
        habits.nature = thalweg_messages::Nature { max_message: 20_000, window: 100_000, ..habits.nature };
    }));
}

/// The broker retains messages to the group.
mod keeps {
    thalweg_conformance::suite!(crate::factory(|habits| habits.keeps = true));
    thalweg_conformance::unauthenticated_peers!(crate::factory(|habits| habits.keeps = true));
}
