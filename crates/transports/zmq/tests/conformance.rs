//! Runs the transport contract's tests over all patterns, over IPv6, and with CURVE.

use thalweg_conformance::{guests, suite, Factory};

mod common;
use common::{factory, options, Trust};

mod router {
    use super::*;
    suite!(factory("127.0.0.1", options("router"), options("router")));
    guests!(factory("127.0.0.1", options("router"), options("router")));
}

mod router_over_ipv6 {
    use super::*;
    suite!(factory("[::1]", options("router"), options("router")));
    guests!(factory("[::1]", options("router"), options("router")));
}

mod pubsub {
    use super::*;
    suite!(factory("localhost", options("pubsub"), options("pubsub")));
    guests!(factory("localhost", options("pubsub"), options("pubsub")));
}

mod pushpull {
    use super::*;
    suite!(factory("127.0.0.1", options("pushpull"), options("pushpull")));
    guests!(factory("127.0.0.1", options("pushpull"), options("pushpull")));
}

mod reqrep {
    use super::*;
    suite!(factory("localhost", options("reqrep"), options("reqrep")));
    guests!(factory("localhost", options("reqrep"), options("reqrep")));
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
    guests!(encrypted("router"));
}

mod pubsub_under_curve {
    use super::*;
    suite!(encrypted("pubsub"));
    guests!(encrypted("pubsub"));
}

mod pushpull_under_curve {
    use super::*;
    suite!(encrypted("pushpull"));
    guests!(encrypted("pushpull"));
}

mod reqrep_under_curve {
    use super::*;
    suite!(encrypted("reqrep"));
    guests!(encrypted("reqrep"));
}
