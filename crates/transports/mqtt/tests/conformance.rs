//! Runs the transport contract's tests through a real Mosquitto, with both versions of MQTT and all qualities
//! of service.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use thalweg_conformance::{suite, unauthenticated_peers, Factory};
use thalweg_transport::{Login, Options, Value};
use tokio::io::AsyncWriteExt;

mod common;
use common::{options, qos, version, Broker};

fn factory(own: &[(&str, Value)]) -> Factory {
    let transport = Arc::new(thalweg_mqtt::transport());
    let broker = match Broker::start("") {
        Ok(broker) => broker,
        Err(missing) => {
            let mut factory = Factory::new(transport, "mqtt://127.0.0.1:1/none");
            factory.missing = Some(missing);
            return factory;
        }
    };
    let mut factory = Factory::new(transport, &broker.address().to_string());
    let options = options(own);
    let wrong = Login { user: common::USER.into(), password: "guess".into() };
    factory.stranger = Some(Options { login: Some(wrong), ..options.clone() });
    factory.intruder = Some(Arc::new(|address| {
        Box::pin(async move {
            let mut stream = tokio::net::TcpStream::connect(address.authority()).await.unwrap();
            // The broker may close the connection meanwhile.
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await;
        })
    }));
    factory.options(options.clone(), options).keep(broker)
}

mod version_5 {
    use super::*;
    suite!(factory(&[]));
    unauthenticated_peers!(factory(&[]));
}

mod version_311_at_least_once {
    use super::*;
    suite!(factory(&[version("3.1.1"), qos(1)]));
    unauthenticated_peers!(factory(&[version("3.1.1"), qos(1)]));
}

mod version_5_exactly_once {
    use super::*;
    suite!(factory(&[qos(2)]));
    unauthenticated_peers!(factory(&[qos(2)]));
}
