//! The reference transport keeps the contract.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use thalweg_conformance::Factory;
use thalweg_transport::memory::Memory;

/// Each test listens at names of its own, as all of them share the process.
fn factory() -> Factory {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Factory::new(Arc::new(Memory), &format!("memory://conformance-{number}:0"))
}

thalweg_conformance::suite!(factory());

thalweg_conformance::guests!(factory());
