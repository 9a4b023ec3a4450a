//! How a driver reaches its machine. Usually the machine is in a mutex of its own. A node of a graph has one
//! machine and several drivers; a dialer gets a view of that machine for its own link.

use std::sync::Mutex;

use thalweg_proto::{ClientMachine, ServerMachine};

use crate::lock;

/// Access to a machine that listens.
pub(crate) trait ServerLock: Send + Sync + 'static {
    type Machine: ServerMachine<Wanted: Send>;

    /// Calls `call` with the machine. No other thread uses the machine meanwhile.
    fn with<T>(&self, call: impl FnOnce(&mut Self::Machine) -> T) -> T;
}

impl<M: ServerMachine<Wanted: Send> + Send + 'static> ServerLock for Mutex<M> {
    type Machine = M;

    fn with<T>(&self, call: impl FnOnce(&mut M) -> T) -> T {
        call(&mut lock(self))
    }
}

/// Access to a machine that dials.
pub(crate) trait ClientLock: Send + Sync + 'static {
    /// The actions that this machine has in addition to the common ones.
    type Wanted: Send;
    type Machine<'a>: ClientMachine<Wanted = Self::Wanted>;

    /// Calls `call` with the machine. No other thread uses the machine meanwhile.
    fn with<T>(&self, call: impl FnOnce(&mut Self::Machine<'_>) -> T) -> T;
}

impl<M: ClientMachine<Wanted: Send> + Send + 'static> ClientLock for Mutex<M> {
    type Wanted = M::Wanted;
    type Machine<'a> = M;

    fn with<T>(&self, call: impl FnOnce(&mut M) -> T) -> T {
        call(&mut lock(self))
    }
}
