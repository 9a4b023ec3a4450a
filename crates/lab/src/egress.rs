//! A rate limit on a host's own device: the kernel's token bucket (tc-tbf(8)). It gives sockets
//! back-pressure.
//!
//! With a limit on the path, a socket that sends too fast notices it only by losses. With a limit on the
//! device, the packets' bytes stay in the socket's send buffer until they leave. So UDP's `send` blocks, and
//! TCP slows down (TCP small queues).

use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::{DefaultNla, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST};
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption, TcStats2};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::{Error, Handle};

use crate::spec::{Egress, BITS};

const KIND: &str = "tbf";
/// From linux/pkt_sched.h: TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST.
const PARAMETERS: u16 = 1;
const RATE64: u16 = 4;
const BURST: u16 = 6;
/// TC_LINKLAYER_ETHERNET: packet sizes count unchanged, and no table of rates is needed.
const LINK_LAYER: u8 = 1;

/// Sets the limit of the device with this index.
pub(crate) async fn apply(limit: &Egress, handle: &Handle, device: u32) -> Result<(), Error> {
    let mut message = TcMessage::with_index(device as i32);
    message.header.parent = TcHandle::ROOT;
    message.attributes.push(TcAttribute::Kind(KIND.to_owned()));
    message.attributes.push(TcAttribute::Options(vec![
        option(PARAMETERS, parameters(limit)),
        option(RATE64, (limit.rate / BITS).to_ne_bytes().to_vec()),
        option(BURST, limit.burst_bytes.to_ne_bytes().to_vec()),
    ]));
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewQueueDiscipline(message));
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
    let mut answers = handle.clone().request(request)?;
    while let Some(answer) = answers.next().await {
        if let NetlinkPayload::Error(error) = answer.payload {
            if error.code.is_some() {
                return Err(Error::NetlinkError(error));
            }
        }
    }
    Ok(())
}

/// `struct tc_tbf_qopt`: rate, peak rate (none), limit, buffer in ticks, mtu.
fn parameters(limit: &Egress) -> Vec<u8> {
    let bytes = u32::try_from(limit.rate / BITS).unwrap_or(u32::MAX);
    // `struct tc_ratespec`: cell_log, linklayer, overhead, cell_align, mpu, rate.
    let mut rate = vec![0, LINK_LAYER, 0, 0, 0, 0, 0, 0];
    rate.extend(bytes.to_ne_bytes());
    let mut all = rate;
    all.extend([0; 12]);
    // The size of the bucket is sent as BURST, in bytes.
    for number in [limit.queue_bytes, 0, 0] {
        all.extend(number.to_ne_bytes());
    }
    all
}

/// Packets that a device's limit has dropped so far; 0 if there is no limit.
pub(crate) async fn drops(handle: &Handle, device: u32) -> Result<u64, Error> {
    let mut found = handle.qdisc().get().index(device as i32).execute();
    let mut dropped = 0;
    while let Some(message) = found.try_next().await? {
        let limits =
            message.attributes.iter().any(|one| matches!(one, TcAttribute::Kind(kind) if kind == KIND));
        if message.header.index != device as i32 || !limits {
            continue;
        }
        for attribute in &message.attributes {
            let TcAttribute::Stats2(parts) = attribute else { continue };
            dropped += parts.iter().map(queue_drops).sum::<u64>();
        }
    }
    Ok(dropped)
}

fn queue_drops(part: &TcStats2) -> u64 {
    match part {
        TcStats2::Queue(queue) => queue.drops.into(),
        _ => 0,
    }
}

fn option(kind: u16, value: Vec<u8>) -> TcOption {
    TcOption::Other(DefaultNla::new(kind, value))
}
