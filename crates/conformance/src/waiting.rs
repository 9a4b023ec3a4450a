//! What holds besides the contract where chunks have a way of their own, and wait at the receiver for the messages that
//! were sent before them.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_transport::{Listener, Options, Transport};

use crate::{outgoing, pattern, update_id, Pump, Recorder, Relay, GUARD};

/// Chunks that wait for a message do not keep it away: the control connection is held up, and more of them come than a
/// receiver may keep before the datagram that repeats the message does.
///
/// # Panics
/// When the message does not come, or not all of the update.
pub async fn chunks_keep_no_message_away(
    transport: &dyn Transport,
    listener: &dyn Listener,
    options: &Options,
    chunk: u32,
) {
    let (client, server, relay) = Relay::link(transport, listener, options).await;
    relay.up.allow(0);
    let source = pattern(4 << 20, 5);
    let recorder = Arc::new(Recorder::new(source.len()));
    let mut pump = Pump::start(&server, &recorder);
    client.send_control(Bytes::from_static(b"before")).await.unwrap();
    let came = async {
        client.send_update(&outgoing(&source, update_id(1), chunk)).await.unwrap();
        client.send_control(Bytes::from_static(b"end")).await.unwrap();
        [pump.next().await.unwrap(), pump.next().await.unwrap()]
    };
    let came = tokio::time::timeout(GUARD / 4, came).await;
    assert_eq!(came.expect("the message never comes"), ["before", "end"]);
    assert_eq!(recorder.seen().ranges.bytes(), source.len());
    recorder.check(&source);
}
