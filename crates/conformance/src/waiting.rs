//! A property beyond the contract, for transports whose chunks do not use the control connection. There,
//! chunks wait at the receiver for the control messages that were sent before them.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_transport::{Listener, Options, Transport};

use crate::{outgoing, pattern, update_id, Pump, Recorder, Relay, GUARD};

/// Chunks that wait for a control message must not keep it from arriving. A relay holds up the control
/// connection. More chunks arrive than the receiver may keep, before the datagram that repeats the message.
///
/// # Panics
/// If the message or a part of the update does not arrive.
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
    let messages = async {
        client.send_update(&outgoing(&source, update_id(1), chunk)).await.unwrap();
        client.send_control(Bytes::from_static(b"end")).await.unwrap();
        [pump.next().await.unwrap(), pump.next().await.unwrap()]
    };
    let messages = tokio::time::timeout(GUARD / 4, messages).await;
    assert_eq!(messages.expect("the message never comes"), ["before", "end"]);
    assert_eq!(recorder.seen().ranges.bytes(), source.len());
    recorder.check(&source);
}
