//! Tests of a link's counters.

use bytes::Bytes;

use crate::pair::transfer;
use crate::{outgoing, pattern, shared_pattern, skip, update_id, Factory, Recorder};

const UPDATE: u64 = 500_000;
const MESSAGE: u64 = 10_000;

/// `Counters::sent` and `Counters::received` are at least the payload.
pub async fn counters_cover_the_payload(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(UPDATE, 1);
    let message = Bytes::from(vec![3; MESSAGE as usize]);
    let sink = Recorder::new(0);
    let (sent, received) = tokio::join!(pair.client.send_control(message), pair.server.receive(&sink));
    sent.unwrap();
    received.unwrap();
    let before = (pair.client.counters(), pair.server.counters());
    assert!(before.0.sent > MESSAGE && before.1.received > MESSAGE, "{before:?}");
    let update = outgoing(&source, update_id(1), factory.chunk(10_000));
    let (report, recorder) = transfer(&pair.client, &pair.server, &update, &source).await;
    let (here, there) = (pair.client.counters(), pair.server.counters());
    assert!(here.sent - before.0.sent >= report.wire, "{here:?} after {report:?}");
    assert!(there.received - before.1.received >= recorder.seen().ranges.bytes(), "{there:?}");
    if factory.capabilities().reliable {
        assert!(there.received - before.1.received > UPDATE, "{there:?}");
    }
}

/// `Counters::copied` is 0 if the capabilities say `zero_copy`.
pub async fn nothing_is_copied_by_a_transport_that_says_so(factory: &Factory) {
    let pair = factory.pair().await;
    if !pair.client.capabilities().zero_copy {
        return skip("it does not say zero_copy");
    }
    // Where peers share memory, bytes that are not shared must be copied.
    let source = if factory.capabilities().lends { shared_pattern(UPDATE, 2) } else { pattern(UPDATE, 2) };
    let update = outgoing(&source, update_id(1), factory.chunk(64 << 10));
    transfer(&pair.client, &pair.server, &update, &source).await;
    assert_eq!(pair.client.counters().copied + pair.server.counters().copied, 0);
}
