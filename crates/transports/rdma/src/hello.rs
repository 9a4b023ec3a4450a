//! The handshake on the inner link: the ends find out whether both can do RDMA, and connect their pairs.
//!
//! ```text
//! connecting end                          listening end
//! hello: endpoints, style; or a refusal ->
//!                                     <-  hello: endpoints, style; or a refusal
//! ring: where commit records go      <->  ring                      if both have endpoints
//!               one packet over each pair <->
//! ready, or a refusal                <->  ready, or a refusal
//! ```
//!
//! If either end refuses, the link is the inner one. Each direction has a pair of its own, so that revoking
//! memory never waits behind data.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_transport::{Error, ErrorKind, Link, NoChunks, Result};
use thalweg_verbs::{Device, Done, Endpoint, Fault, Pair, Remote, Work};
use thalweg_wire::text::plain;
use thalweg_wire::{Range, MAX_CHUNK};

use crate::device::Towards;
use crate::settings::{Style, SLOTS};
use crate::words::{put_remote, Reader, RECORD};
use crate::{NOTES, WORKS};

const MAGIC: &[u8; 5] = b"tlwr\x03";
const SHAKE: &str = "shake hands";
/// Longest reason for a refusal, in bytes.
const REASON: usize = 600;
/// The immediate data ("note") of the first packet.
const PROBE: u32 = u32::MAX;
/// Maximum time to wait for the first packet. The device itself gives up after seven timeouts, of 0.07 s each
/// on short paths.
const PROBING: Duration = Duration::from_secs(4);

/// Bytes that the handshake registers on trial: as many as a link needs for one chunk of 4 MiB each way when
/// it cannot lock the arenas' memory.
const SPARE: u64 = 8 << 20;

/// Bytes of the one slot of FedRDMA's first version (section 3.1): a header and the longest chunk.
const SLOT: u64 = RECORD as u64 + MAX_CHUNK as u64;

/// Outcome of the handshake.
pub(crate) enum Shaken {
    Rdma(Box<Pairs>),
    /// The link stays tcp, for this reason.
    Tcp(String),
}

/// Two pairs that work, and what the ends have agreed on.
pub(crate) struct Pairs {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) outgoing: Box<dyn Pair>,
    /// The peer's ring or slot. Unused when receivers read.
    pub(crate) to: Remote,
    pub(crate) incoming: Box<dyn Pair>,
    /// The key to our own ring or slot, and its address.
    pub(crate) ring: u32,
    pub(crate) ring_address: usize,
    /// Whether receivers read, instead of senders writing.
    pub(crate) pulls: bool,
    /// How the peer sends. Not used when receivers read.
    pub(crate) theirs: Style,
    /// Payload bytes of the longest packet that both ends accept.
    pub(crate) mtu: u32,
}

/// Which end this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Connecting,
    Listening,
}

fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, SHAKE, format!("{what}; the peer is no rdma of this version"))
        .hint("use the same transport and version at both ends")
}

struct Messages<'a>(&'a dyn Link);

impl Messages<'_> {
    async fn say(&self, kind: u8, what: std::result::Result<&[u8], &str>) -> Result<()> {
        let mut message = MAGIC.to_vec();
        message.extend([kind, u8::from(what.is_ok())]);
        match what {
            Ok(bytes) => message.extend(bytes),
            Err(why) => message.extend(plain(why, REASON).into_bytes()),
        }
        self.0.send_control(message.into()).await
    }

    async fn hear(&self, kind: u8) -> Result<std::result::Result<Bytes, String>> {
        let message = self.0.receive(&NoChunks).await?;
        let body = message.strip_prefix(MAGIC).ok_or_else(|| corrupt("an unknown greeting"))?;
        match body {
            [of, 1, rest @ ..] if *of == kind => Ok(Ok(message.slice_ref(rest))),
            [of, 0, why @ ..] if *of == kind => Ok(Err(plain(&String::from_utf8_lossy(why), REASON))),
            _ => Err(corrupt("a greeting out of order")),
        }
    }

    async fn exchange(
        &self,
        end: End,
        kind: u8,
        what: std::result::Result<&[u8], &str>,
    ) -> Result<std::result::Result<Bytes, String>> {
        if end == End::Connecting {
            self.say(kind, what).await?;
            return self.hear(kind).await;
        }
        let heard = self.hear(kind).await?;
        self.say(kind, what).await?;
        Ok(heard)
    }
}

/// The pairs and memory that this end prepares before it knows anything about the peer.
struct Ours {
    device: Arc<dyn Device>,
    outgoing: Box<dyn Pair>,
    incoming: Box<dyn Pair>,
    ring: Arena,
}

fn prepare(device: Towards) -> std::result::Result<Ours, String> {
    let why = |error: thalweg_verbs::Error| format!("{}: {error}", device.name());
    let works = device.limits().works;
    if works < WORKS + 1 {
        return Err(format!("{} holds {works} work requests, {} are needed", device.name(), WORKS + 1));
    }
    // Register spare memory on trial. A link cannot fall back to tcp after the handshake, so a low limit on
    // locked memory must show now.
    let some = Arena::new(SPARE).map_err(|error| error.to_string())?;
    device.register(&some).map_err(why)?;
    drop(some);
    let ring = Arena::new((SLOTS * RECORD) as u64).map_err(|error| error.to_string())?;
    device.register(&ring).map_err(why)?;
    let outgoing = device.first_pair(NOTES).map_err(why)?;
    let incoming = device.first_pair(NOTES).map_err(why)?;
    Ok(Ours { device: Arc::new(device), outgoing, incoming, ring })
}

/// Shakes hands over the inner link. `device` is this end's device, or the reason why it has none.
///
/// # Errors
/// Errors of the inner link; [`ErrorKind::Corrupt`] if the peer speaks another protocol.
pub(crate) async fn shake(
    inner: &dyn Link,
    end: End,
    device: std::result::Result<Arc<dyn Device>, String>,
    style: Style,
) -> Result<Shaken> {
    let messages = Messages(inner);
    let round_trip = inner.counters().round_trip;
    let ours = device.and_then(|device| prepare(Towards { device, round_trip }));
    let endpoints = ours.as_ref().map(|ours| {
        let mut both = ours.outgoing.endpoint().encode().to_vec();
        both.extend(ours.incoming.endpoint().encode());
        both.push(style as u8);
        both
    });
    let said = endpoints.as_ref().map(Vec::as_slice).map_err(|why| why.as_str());
    let heard = messages.exchange(end, 1, said).await?;
    let (ours, theirs) = match (ours, heard) {
        (Ok(ours), Ok(theirs)) => (ours, theirs),
        (Err(why), _) => return Ok(Shaken::Tcp(why)),
        (_, Err(why)) => return Ok(Shaken::Tcp(format!("the peer says: {why}"))),
    };
    let mut reader = Reader(&theirs);
    let (their_outgoing, their_incoming) = (reader.endpoint()?, reader.endpoint()?);
    let [theirs] = reader.take()?;
    let styles = [Style::Writes, Style::Pull, Style::Slot, Style::Printed];
    let known = styles.into_iter().find(|&known| known as u8 == theirs);
    let theirs = known.ok_or_else(|| corrupt("an unknown mode"))?;
    join(messages, end, ours, (&their_outgoing, &their_incoming), (style, theirs)).await
}

async fn join(
    messages: Messages<'_>,
    end: End,
    mut ours: Ours,
    (their_outgoing, their_incoming): (&Endpoint, &Endpoint),
    (style, theirs): (Style, Style),
) -> Result<Shaken> {
    let pulls = [style, theirs].contains(&Style::Pull);
    let has_mode = pulls || theirs.is_available();
    let mtu = ours.outgoing.endpoint().mtu.min(their_incoming.mtu);
    let opened = async {
        if !has_mode {
            return Err(
                "one end sends in a mode that is for comparison only, and the other end's build has no \
                        baselines"
                    .into(),
            );
        }
        let refused = |error: thalweg_verbs::Error| error.to_string();
        ours.outgoing.connect(their_incoming).map_err(refused)?;
        ours.incoming.connect(their_outgoing).map_err(refused)?;
        if theirs == Style::Slot && !pulls {
            ours.ring = Arena::new(SLOT).map_err(|error| error.to_string())?;
            ours.device.register(&ours.ring).map_err(refused)?;
        }
        // Receivers that read open no memory to writes. This end lends its ring instead, for the peer's first
        // read.
        let pair = if pulls {
            let bytes = ours.ring.lend(ours.ring.range()).map_err(|error| error.to_string())?;
            ours.outgoing.post(0, Work::Lend(bytes)).map_err(refused)?;
            &mut ours.outgoing
        } else {
            let claim = ours.ring.claim(ours.ring.range()).map_err(|error| error.to_string())?;
            ours.incoming.post(0, Work::Open(claim.into())).map_err(refused)?;
            &mut ours.incoming
        };
        match next(pair).await {
            Done::Opened(_, ring) => Ok(ring),
            other => Err(format!("the ring could not be opened ({other:?})")),
        }
    };
    let opened = opened.await;
    let ring = opened.as_ref().map(|ring| {
        let mut bytes = Vec::new();
        put_remote(&mut bytes, *ring);
        bytes
    });
    let said = ring.as_ref().map(Vec::as_slice).map_err(|why| why.as_str());
    let heard = messages.exchange(end, 2, said).await?;
    let (own, to) = match (opened, heard) {
        (Ok(own), Ok(theirs)) => (own, Reader(&theirs).remote()?),
        (Err(why), _) => return Ok(Shaken::Tcp(why)),
        (_, Err(why)) => return Ok(Shaken::Tcp(format!("the peer says: {why}"))),
    };
    // Read one packet, as long as the path's MTU or the ring allows.
    let length = u64::from(mtu).min((SLOTS * RECORD) as u64);
    let probed =
        if pulls { probe_by_read(&mut ours, to, length).await } else { probe(&mut ours, to, length).await };
    let said = probed.as_ref().map(|()| &[][..]).map_err(|why| why.as_str());
    let heard = messages.exchange(end, 3, said).await?;
    match (probed, heard) {
        (Ok(()), Ok(_)) => {
            let Ours { device, outgoing, incoming, ring } = ours;
            let ring_address = ring.as_ptr() as usize;
            let ring = own.key;
            let pairs = Pairs { device, outgoing, to, incoming, ring, ring_address, pulls, theirs, mtu };
            Ok(Shaken::Rdma(Box::new(pairs)))
        }
        (Err(why), _) => Ok(Shaken::Tcp(why)),
        (_, Err(why)) => Ok(Shaken::Tcp(format!("the peer says: {why}"))),
    }
}

/// Waits for the next event of a pair.
async fn next(pair: &mut Box<dyn Pair>) -> Done {
    let mut done = Vec::new();
    poll_fn(|context| match pair.poll(context, &mut done) {
        Poll::Pending => Poll::Pending,
        Poll::Ready(()) => done.drain(..).next().map_or(Poll::Pending, Poll::Ready),
    })
    .await
}

fn blocked(what: &str, length: u64) -> String {
    format!(
        "{what} over RDMA: a firewall may drop UDP port 4791, or the path's MTU is below {length} bytes; open the port, or \
         set the MTU of the RDMA ports"
    )
}

/// Reads one packet over the incoming pair. Meanwhile the peer reads one over our outgoing pair.
async fn probe_by_read(ours: &mut Ours, from: Remote, length: u64) -> std::result::Result<(), String> {
    let memory = Arena::new(length).map_err(|error| error.to_string())?;
    ours.device.register(&memory).map_err(|error| error.to_string())?;
    let into = memory.claim(memory.range()).map_err(|error| error.to_string())?;
    ours.incoming.post(0, Work::Read { into, from }).map_err(|error| error.to_string())?;
    // Poll the outgoing pair as well: the peer's read may progress only while this end polls.
    let other = async {
        Err::<(), _>(format!("the peer's first read failed ({:?})", next(&mut ours.outgoing).await))
    };
    let read = async {
        match next(&mut ours.incoming).await {
            Done::Read(..) => Ok(()),
            Done::Lost(Fault::Retries) => Err(blocked("the peer does not answer", length)),
            other => Err(format!("the first read failed ({other:?})")),
        }
    };
    let both = async {
        tokio::select! {
            biased;
            read = read => read,
            other = other => other,
        }
    };
    tokio::time::timeout(PROBING, both).await.unwrap_or_else(|_| Err(blocked("nothing comes", length)))
}

/// Writes one packet over the outgoing pair and waits for the peer's packet on the incoming pair. The path
/// may carry TCP but no RDMA, or no packets of that length. This is also FedRDMA's Link-Enable (section 4.3):
/// a device that must first learn the path does so before data is sent.
async fn probe(ours: &mut Ours, to: Remote, length: u64) -> std::result::Result<(), String> {
    let memory = Arena::new(length).map_err(|error| error.to_string())?;
    ours.device.register(&memory).map_err(|error| error.to_string())?;
    let bytes = memory.lend(Range::new(0, length)).map_err(|error| error.to_string())?;
    let work = Work::Note { bytes: vec![bytes], to, note: PROBE };
    ours.outgoing.post(0, work).map_err(|error| error.to_string())?;
    let outgoing = async {
        match next(&mut ours.outgoing).await {
            Done::Written(_) => Ok(()),
            Done::Lost(Fault::Retries) => Err(blocked("the peer does not answer", length)),
            other => Err(format!("the first write failed ({other:?})")),
        }
    };
    let incoming = async {
        match next(&mut ours.incoming).await {
            Done::Noted(PROBE) => Ok(()),
            other => Err(format!("the peer's first write failed ({other:?})")),
        }
    };
    let both = async { tokio::join!(outgoing, incoming) };
    match tokio::time::timeout(PROBING, both).await {
        Ok((outgoing, incoming)) => outgoing.and(incoming),
        Err(_) => Err(blocked("nothing comes", length)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report
mod tests {
    use thalweg_conformance::Factory;
    use thalweg_transport::memory::Memory;
    use thalweg_verbs::pretend::{Behaviour, Fabric, Pretend};

    use super::*;

    /// Shakes hands; the connecting end may come from a build with baselines.
    async fn shaken(theirs: Style, ours: Style) -> [Shaken; 2] {
        let fabric = Arc::new(Fabric::default());
        let pair = Factory::new(Arc::new(Memory), "memory://hello:0").pair().await;
        let device = || -> std::result::Result<Arc<dyn Device>, String> {
            Ok(Arc::new(Pretend::new(&fabric, Behaviour::default())))
        };
        let (connected, accepted) = tokio::join!(
            shake(&*pair.client, End::Connecting, device(), theirs),
            shake(&*pair.server, End::Listening, device(), ours),
        );
        [connected.unwrap(), accepted.unwrap()]
    }

    #[tokio::test]
    async fn a_mode_that_the_build_lacks_makes_a_link_tcp_that_says_why() {
        for theirs in [Style::Slot, Style::Printed] {
            for shaken in shaken(theirs, Style::Writes).await {
                match shaken {
                    Shaken::Rdma(_) => assert!(theirs.is_available()),
                    Shaken::Tcp(why) => {
                        assert!(!theirs.is_available() && why.contains("no baselines"), "{why}")
                    }
                }
            }
            // Nobody writes to an end that reads.
            let both = shaken(theirs, Style::Pull).await;
            assert!(both.iter().all(|shaken| matches!(shaken, Shaken::Rdma(_))));
        }
    }
}
