//! Runs the transport contract's tests through a real RabbitMQ, with each exchange type, with and without
//! TLS.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use thalweg_conformance::{suite, unauthenticated_peers, Factory};
use thalweg_transport::{Options, Value};

mod common;
use common::{job, options, shared, MISSING};

/// All tests share one node; each has a job's name of its own.
fn factory(make: impl FnOnce(&'static common::Node) -> (String, Options)) -> Factory {
    let transport = Arc::new(thalweg_amqp::transport());
    let Some(node) = shared() else {
        let mut factory = Factory::new(transport, "amqp://127.0.0.1:1/none");
        factory.missing = Some(MISSING.into());
        return factory;
    };
    let (url, options) = make(node);
    Factory::new(transport, &format!("{url}/{}", job())).options(options.clone(), options)
}

fn with(settings: &[(&str, Value)]) -> Factory {
    factory(|node| {
        let mut options = options();
        for (name, value) in settings {
            options.own = options.own.clone().with(name, value.clone());
        }
        (node.url(), options)
    })
}

mod fanout {
    use super::*;
    suite!(with(&[]));
    unauthenticated_peers!(with(&[]));
}

mod topic_without_confirms {
    use super::*;
    suite!(with(&[("exchange", Value::Text("topic".into())), ("confirms", Value::Flag(false))]));
    unauthenticated_peers!(with(&[
        ("exchange", Value::Text("topic".into())),
        ("confirms", Value::Flag(false))
    ]));
}

mod direct_with_the_least_prefetch {
    use super::*;
    suite!(with(&[("exchange", Value::Text("direct".into())), ("prefetch", Value::Number(1))]));
    unauthenticated_peers!(with(&[
        ("exchange", Value::Text("direct".into())),
        ("prefetch", Value::Number(1))
    ]));
}

mod under_tls {
    use super::*;
    suite!(factory(|node| (node.secure_url(), Options { tls: Some(node.trust(None)), ..options() })));
    unauthenticated_peers!(factory(|node| (
        node.secure_url(),
        Options { tls: Some(node.trust(None)), ..options() }
    )));
}
