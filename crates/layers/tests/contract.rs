//! Wrapped transports keep the transport contract.
#![allow(clippy::unwrap_used)] // in helpers of tests too

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use thalweg_conformance::{suite, unauthenticated_peers, Factory};
use thalweg_layers::{Compress, Emulate, Fault, Layer, Rate, Seal, Throttle};
use thalweg_linkmodel::Shape;
use thalweg_tcp::Tcp;
use thalweg_testkit::trace::Trace;
use thalweg_transport::memory::Memory;

mod common;
use common::lossy::Lossy;
use common::Trust;

/// The memory transport within a layer. Each test uses a name of its own.
fn wrapped(layer: &impl Layer) -> Factory {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Factory::new(layer.wrap(Arc::new(Memory)), &format!("memory://layers-{number}:0"))
}

/// Sealed links over TLS. Their keys are derived from those of TLS.
fn sealed(layer: &Seal) -> Factory {
    let trust = Trust::new();
    let factory = Factory::new(layer.wrap(Arc::new(Tcp)), "tcp://localhost:0");
    factory.options(trust.listen(false), trust.connect(None))
}

mod no_fault {
    use super::*;
    suite!(wrapped(&Fault::default()));
    unauthenticated_peers!(wrapped(&Fault::default()));
}

mod every_fault {
    use super::*;

    fn fault() -> Fault {
        let (loss, duplicate, reorder, corrupt) = (0.05, 0.05, 0.1, 0.02);
        Fault { seed: 11, loss, duplicate, reorder, corrupt, ..Fault::default() }
    }

    suite!(wrapped(&fault()));
    unauthenticated_peers!(wrapped(&fault()));
}

mod delay {
    use super::*;

    fn delay() -> Fault {
        Fault { seed: 12, delay_ms: 2.0, jitter_ms: 1.0, ..Fault::default() }
    }

    suite!(wrapped(&delay()));
    unauthenticated_peers!(wrapped(&delay()));
}

mod throttle {
    use super::*;
    suite!(wrapped(&Throttle::new(Rate::parse("20gbit").unwrap())));
    unauthenticated_peers!(wrapped(&Throttle::new(Rate::parse("20gbit").unwrap())));
}

mod shared_throttle {
    use super::*;
    suite!(wrapped(&Throttle::new(Rate::parse("50gbit").unwrap()).shared()));
    unauthenticated_peers!(wrapped(&Throttle::new(Rate::parse("50gbit").unwrap()).shared()));
}

mod emulate_nothing {
    use super::*;
    suite!(wrapped(&Emulate::default()));
    unauthenticated_peers!(wrapped(&Emulate::default()));
}

mod emulate {
    use super::*;

    fn link() -> Emulate {
        let loss =
            Shape { rate: Some(20_000_000_000), delay: 2e-3, jitter: 1e-3, loss: 1e-4, ..Shape::default() };
        Emulate { seed: 5, up: loss.clone(), down: loss, ..Emulate::default() }
    }

    suite!(wrapped(&link()));
    unauthenticated_peers!(wrapped(&link()));
}

mod emulate_over_loss {
    use super::*;

    /// On a transport that is not reliable, chunks are lost, repeated and reordered.
    fn link() -> Factory {
        let wild = Shape { loss: 0.002, jitter: 1e-3, delay: 1e-3, duplicate: 0.01, ..Shape::default() };
        let layer = Emulate { seed: 5, up: wild.clone(), down: wild, ..Emulate::default() };
        let mut factory = wrapped(&Fault::default());
        factory.transport =
            layer.wrap(Fault { loss: 0.01, seed: 4, ..Fault::default() }.wrap(Arc::new(Memory)));
        factory
    }

    suite!(link());
    unauthenticated_peers!(link());
}

mod seal {
    use super::*;
    suite!(sealed(&Seal::default()));
    unauthenticated_peers!(sealed(&Seal::default()));
}

/// Chunks travel on data connections, without TLS.
mod seal_over_data_connections {
    use super::*;

    fn apart() -> Factory {
        let mut factory = sealed(&Seal::default());
        factory.transport = Seal::default().wrap(Arc::new(Lossy::default()));
        factory.relayed = false; // it passes on only complete frames
        factory
    }

    suite!(apart());
    unauthenticated_peers!(apart());
}

mod seal_in_small_records_with_chacha {
    use super::*;

    fn layer() -> Seal {
        Seal { cipher: "chacha20-poly1305".parse().unwrap(), record: Some(100), ..Seal::default() }
    }

    suite!(sealed(&layer()));
    unauthenticated_peers!(sealed(&layer()));
}

#[cfg(feature = "baselines")]
mod seal_with_cbc {
    use thalweg_seal::Suite;

    use super::*;

    fn layer() -> Seal {
        Seal { cipher: Suite::AesCbc, record: Some(1432), ..Seal::default() }
    }

    suite!(sealed(&layer()));
    unauthenticated_peers!(sealed(&layer()));
}

mod seal_over_every_fault {
    use super::*;

    fn stack() -> Factory {
        let (loss, duplicate, reorder, corrupt) = (0.05, 0.05, 0.1, 0.02);
        let fault = Fault { seed: 11, loss, duplicate, reorder, corrupt, ..Fault::default() };
        let mut factory = sealed(&Seal::default());
        factory.transport = Seal::default().wrap(fault.wrap(Arc::new(Tcp)));
        factory
    }

    suite!(stack());
    unauthenticated_peers!(stack());
}

/// Updates without a layout. Their bytes are sent unchanged, so the contract holds for every bit.
mod compress {
    use super::*;
    suite!(wrapped(&Compress::default()));
    unauthenticated_peers!(wrapped(&Compress::default()));
}

mod compress_sealed_links {
    use super::*;

    fn stack() -> Factory {
        let mut factory = sealed(&Seal::default());
        factory.transport = Compress::default().wrap(Seal::default().wrap(Arc::new(Tcp)));
        factory
    }

    suite!(stack());
    unauthenticated_peers!(stack());
}

mod compress_over_every_fault {
    use super::*;

    fn stack() -> Factory {
        let (loss, duplicate, reorder, corrupt) = (0.05, 0.05, 0.1, 0.02);
        let fault = Fault { seed: 11, loss, duplicate, reorder, corrupt, ..Fault::default() };
        let mut factory = wrapped(&Fault::default());
        factory.transport = Compress::default().wrap(fault.wrap(Arc::new(Memory)));
        factory
    }

    suite!(stack());
    unauthenticated_peers!(stack());
}

mod trace {
    use super::*;
    suite!(wrapped(&Trace::new(100)));
    unauthenticated_peers!(wrapped(&Trace::new(100)));
}

mod all_of_them {
    use super::*;

    /// Layers are transports, so they wrap each other.
    fn stack() -> Factory {
        let throttle = Throttle::new(Rate::parse("20gbit").unwrap());
        let traced = Trace::new(10).wrap(Arc::new(Memory));
        let mut factory = wrapped(&Fault::default());
        factory.transport = Fault::default().wrap(throttle.wrap(traced));
        factory
    }

    suite!(stack());
    unauthenticated_peers!(stack());
}
