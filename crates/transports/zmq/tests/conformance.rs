//! Runs the transport contract's tests over all patterns, over IPv6, and with CURVE.

use thalweg_conformance::{suite, unauthenticated_peers, Factory};

mod common;
use common::{factory, options, Trust};

mod router {
    use super::*;
    suite!(factory("127.0.0.1", options("router"), options("router")));
    unauthenticated_peers!(factory("127.0.0.1", options("router"), options("router")));
}

mod router_over_ipv6 {
    use super::*;
    suite!(factory("[::1]", options("router"), options("router")));
    unauthenticated_peers!(factory("[::1]", options("router"), options("router")));
}

mod pubsub {
    use super::*;
    suite!(factory("localhost", options("pubsub"), options("pubsub")));
    unauthenticated_peers!(factory("localhost", options("pubsub"), options("pubsub")));
}

mod pushpull {
    use super::*;
    suite!(factory("127.0.0.1", options("pushpull"), options("pushpull")));
    unauthenticated_peers!(factory("127.0.0.1", options("pushpull"), options("pushpull")));
}

mod reqrep {
    use super::*;
    suite!(factory("localhost", options("reqrep"), options("reqrep")));
    unauthenticated_peers!(factory("localhost", options("reqrep"), options("reqrep")));
}

fn encrypted(pattern: &str) -> Factory {
    let (trust, other) = (Trust::new(), Trust::new());
    let mut factory = factory("127.0.0.1", trust.listen(pattern), trust.connect(pattern));
    factory.stranger = Some(other.connect(pattern));
    factory
}

mod router_under_curve {
    use super::*;
    suite!(encrypted("router"));
    unauthenticated_peers!(encrypted("router"));
}

mod pubsub_under_curve {
    use super::*;
    suite!(encrypted("pubsub"));
    unauthenticated_peers!(encrypted("pubsub"));
}

mod pushpull_under_curve {
    use super::*;
    suite!(encrypted("pushpull"));
    unauthenticated_peers!(encrypted("pushpull"));
}

mod reqrep_under_curve {
    use super::*;
    suite!(encrypted("reqrep"));
    unauthenticated_peers!(encrypted("reqrep"));
}
