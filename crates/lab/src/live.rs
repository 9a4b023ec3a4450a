//! A running lab: its hosts and its relay.

use std::collections::BTreeMap;

use serde_json::{json, Value};
use thalweg_linkmodel::Shape;

use crate::fabric::Fabric;
use crate::host::{Host, DEVICE};
use crate::relay::{threads, Relay};
use crate::spec::{impossible, Direction, Spec};
use crate::Result;

/// An emulated network. It exists until this is dropped.
pub struct Lab {
    // Order of dropping: the relay closes the devices before the hosts' namespaces go.
    relay: Relay,
    hosts: Vec<Host>,
}

impl Lab {
    /// Makes the hosts and starts the relay.
    pub fn new(spec: &Spec) -> Result<Self> {
        let workers = threads(spec.hosts.len());
        let fabric = Fabric::new(spec, workers)?;
        let made = (0..spec.hosts.len()).map(|number| Host::new(number, spec));
        let (hosts, devices) = made.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        Ok(Self { relay: Relay::start(fabric, workers, devices)?, hosts })
    }

    /// The hosts by name: path and inode of the namespace, addresses, device, and RDMA device if there is
    /// one.
    pub fn hosts(&self) -> Value {
        let described = self.hosts.iter().map(|host| {
            let described = json!({
                "namespace": host.namespace.path(),
                "inode": host.namespace.inode(),
                "ipv4": host.ipv4.to_string(),
                "ipv6": host.ipv6.to_string(),
                "device": DEVICE,
                "rdma": host.rdma,
            });
            (host.name.clone(), described)
        });
        described.collect::<serde_json::Map<_, _>>().into()
    }

    /// Starts the clock of the spec's changes and of samples.
    pub fn start(&self) {
        let (mut fabric, now) = self.relay.shared.fabric();
        fabric.start(now);
        drop(fabric);
        self.relay.shared.wake();
    }

    /// Changes the shape of a link, in one direction ("ab" or "ba") or in both. `shape` is JSON.
    pub fn set(&self, link: &str, direction: Option<&str>, shape: &str) -> Result<()> {
        let direction = match direction {
            None => None,
            Some("ab") => Some(Direction::Ab),
            Some("ba") => Some(Direction::Ba),
            Some(other) => return Err(impossible(format!("the direction {other:?}; there are ab and ba"))),
        };
        let shape: Shape =
            serde_json::from_str(shape).map_err(|e| impossible(format!("a link's JSON: {e}")))?;
        self.relay.shared.fabric().0.set(link, direction, &shape)
    }

    /// Counters of all links and hosts, and the relay's state.
    pub fn status(&self) -> Result<Value> {
        let (mut fabric, now) = self.relay.shared.fabric();
        let (lines, elapsed, strays) = (fabric.status(now), fabric.elapsed(now), fabric.astray());
        drop(fabric);
        let counters: Result<BTreeMap<_, _>> =
            self.hosts.iter().map(|host| Ok((host.name.as_str(), host.counters()?))).collect();
        Ok(json!({
            "elapsed": elapsed,
            "relay": {
                "cpu_seconds": self.relay.shared.cpu().as_secs_f64(),
                "realtime": self.relay.shared.realtime(),
                "strays": strays,
                "failure": self.relay.failure(),
            },
            "links": lines,
            "hosts": counters?,
        }))
    }

    /// Samples of queues and traffic since the last call.
    pub fn samples(&self) -> Result<Value> {
        let taken = self.relay.shared.fabric().0.take_samples();
        let named = taken.into_iter().map(|(link, direction, sample)| {
            let mut value = serde_json::to_value(sample).map_err(|e| impossible(e.to_string()))?;
            value["link"] = link.into();
            value["direction"] = direction.into();
            Ok(value)
        });
        named.collect::<Result<Vec<_>>>().map(Value::Array)
    }

    /// Why the relay has ended; `None` while it runs.
    pub fn failure(&self) -> Option<String> {
        self.relay.failure()
    }
}
