//! The handshake on the inner link: the ends find out whether both can do RDMA, and connect their pairs.
//!
//! ```text
//! connecting end                          listening end
//! hello: style, endpoints; or a refusal ->
//!                                     <-  hello: style, endpoints; or a refusal
//! rings: where commit records go     <->  rings                     if both have endpoints
//!               one packet over each pair <->
//! ready, or a refusal                <->  ready, or a refusal
//! ```
//!
//! If either end refuses, the link is the inner one. Each direction has pairs of its own, so that revoking
//! memory never waits behind data. The connecting end names endpoints for as many pairs as its option `pairs` says, the
//! listening end for as many as both use: the lower of the two numbers. A peer that says nothing costs the listening end no
//! pair.

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
use crate::settings::{Choices, Style, MOST_PAIRS, SLOTS};
use crate::words::{put_remote, Reader, RECORD};
use crate::{NOTES, WORKS};

const MAGIC: &[u8; 5] = b"tlwr\x04";
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

/// Bytes of a ring.
const RING: u64 = (SLOTS * RECORD) as u64;

/// Bytes of the one slot of FedRDMA's first version (section 3.1): a header and the longest chunk.
const SLOT: u64 = RECORD as u64 + MAX_CHUNK as u64;

/// Outcome of the handshake.
pub(crate) enum Shaken {
    Rdma(Box<Pairs>),
    /// The link stays tcp, for this reason.
    Tcp(String),
}

/// Pairs that work, at least one for each direction, and what the ends have agreed on.
pub(crate) struct Pairs {
    pub(crate) device: Arc<dyn Device>,
    /// Each pair with the peer's ring or slot, which is unused when receivers read.
    pub(crate) outgoing: Vec<(Box<dyn Pair>, Remote)>,
    /// Each pair with the key to our own ring or slot, and its address.
    pub(crate) incoming: Vec<(Box<dyn Pair>, u32, usize)>,
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

    /// The peer's hello, or why it refuses.
    async fn hear_hello(&self) -> Result<std::result::Result<Hello, String>> {
        Ok(match self.hear(1).await? {
            Ok(hello) => Ok(Hello::decode(&hello)?),
            Err(why) => Err(format!("the peer says: {why}")),
        })
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

/// What an end says first.
struct Hello {
    style: Style,
    /// Of each pair the end that sends, and the one that receives.
    endpoints: Vec<(Endpoint, Endpoint)>,
}

impl Hello {
    fn encode(&self) -> Vec<u8> {
        let mut all = vec![self.style as u8, self.endpoints.len() as u8];
        for (outgoing, incoming) in &self.endpoints {
            all.extend(outgoing.encode());
            all.extend(incoming.encode());
        }
        all
    }

    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is none.
    fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader(bytes);
        let [style, pairs] = reader.take()?;
        if !(1..=MOST_PAIRS).contains(&usize::from(pairs)) {
            return Err(corrupt("endpoints of no pair, or of too many"));
        }
        let both = |_| Ok((reader.endpoint()?, reader.endpoint()?));
        let endpoints = (0..pairs).map(both).collect::<Result<_>>()?;
        let styles = [Style::Writes, Style::Pull, Style::Slot, Style::Printed];
        let known = styles.into_iter().find(|&known| known as u8 == style);
        Ok(Self { style: known.ok_or_else(|| corrupt("an unknown mode"))?, endpoints })
    }

    /// How many pairs of each direction both ends use, if the other end has this style and may have so many.
    fn agreed(&self, style: Style, pairs: usize) -> usize {
        if [style, self.style] == [Style::Writes; 2] {
            pairs.min(self.endpoints.len())
        } else {
            1
        }
    }
}

/// The pairs and memory of this end.
struct Ours {
    device: Arc<dyn Device>,
    outgoing: Vec<Box<dyn Pair>>,
    incoming: Vec<Box<dyn Pair>>,
    /// The rings of all incoming pairs, one behind the other.
    rings: Arena,
}

impl Ours {
    fn hello(&self, style: Style) -> Hello {
        let both = self.outgoing.iter().zip(&self.incoming);
        Hello { style, endpoints: both.map(|(one, other)| (one.endpoint(), other.endpoint())).collect() }
    }
}

fn prepare(device: Towards, pairs: usize) -> std::result::Result<Ours, String> {
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
    let rings = Arena::new(pairs as u64 * RING).map_err(|error| error.to_string())?;
    device.register(&rings).map_err(why)?;
    let make = || (0..pairs).map(|_| device.first_pair(NOTES).map_err(why)).collect();
    let (outgoing, incoming): (std::result::Result<_, String>, std::result::Result<_, String>) =
        (make(), make());
    Ok(Ours { outgoing: outgoing?, incoming: incoming?, device: Arc::new(device), rings })
}

/// Shakes hands over the inner link. `device` is this end's device, or the reason why it has none.
///
/// # Errors
/// Errors of the inner link; [`ErrorKind::Corrupt`] if the peer speaks another protocol.
pub(crate) async fn shake(
    inner: &dyn Link,
    end: End,
    device: std::result::Result<Arc<dyn Device>, String>,
    &Choices { style, pairs, .. }: &Choices,
) -> Result<Shaken> {
    let messages = Messages(inner);
    let heard = match end {
        End::Listening => Some(messages.hear_hello().await?),
        End::Connecting => None,
    };
    let wanted = match &heard {
        None => Ok(pairs),
        Some(Ok(theirs)) => Ok(theirs.agreed(style, pairs)),
        Some(Err(why)) => Err(why.clone()),
    };
    let round_trip = inner.counters().round_trip;
    let ours = device.and_then(|device| prepare(Towards { device, round_trip }, wanted?));
    let hello = ours.as_ref().map(|ours| ours.hello(style).encode());
    messages.say(1, hello.as_ref().map(Vec::as_slice).map_err(|why| why.as_str())).await?;
    let heard = match heard {
        Some(heard) => heard,
        None => messages.hear_hello().await?,
    };
    let (mut ours, mut theirs) = match (ours, heard) {
        (Ok(ours), Ok(theirs)) => (ours, theirs),
        (Err(why), _) | (_, Err(why)) => return Ok(Shaken::Tcp(why)),
    };
    let agreed = theirs.agreed(style, pairs);
    ours.outgoing.truncate(agreed);
    ours.incoming.truncate(agreed);
    theirs.endpoints.truncate(agreed);
    join(messages, end, ours, &theirs.endpoints, (style, theirs.style)).await
}

async fn join(
    messages: Messages<'_>,
    end: End,
    mut ours: Ours,
    endpoints: &[(Endpoint, Endpoint)],
    (style, theirs): (Style, Style),
) -> Result<Shaken> {
    let pulls = [style, theirs].contains(&Style::Pull);
    let has_mode = pulls || theirs.is_available();
    let both = ours.outgoing.iter().zip(endpoints);
    let mtu = both.map(|(pair, (_, theirs))| pair.endpoint().mtu.min(theirs.mtu)).min().unwrap_or_default();
    let opened = async {
        if !has_mode {
            return Err(
                "one end sends in a mode that is for comparison only, and the other end's build has no \
                        baselines"
                    .into(),
            );
        }
        let refused = |error: thalweg_verbs::Error| error.to_string();
        for (at, (their_outgoing, their_incoming)) in endpoints.iter().enumerate() {
            ours.outgoing[at].connect(their_incoming).map_err(refused)?;
            ours.incoming[at].connect(their_outgoing).map_err(refused)?;
        }
        let mut length = RING;
        if theirs == Style::Slot && !pulls {
            length = SLOT;
            ours.rings = Arena::new(SLOT).map_err(|error| error.to_string())?;
            ours.device.register(&ours.rings).map_err(refused)?;
        }
        let mut rings = Vec::new();
        for (start, at) in (0..).step_by(length as usize).zip(0..endpoints.len()) {
            let range = Range::new(start, start + length);
            // Receivers that read open no memory to writes. This end lends its ring instead, for the peer's
            // first read.
            let pair = if pulls {
                let bytes = ours.rings.lend(range).map_err(|error| error.to_string())?;
                ours.outgoing[at].post(0, Work::Lend(bytes)).map_err(refused)?;
                &mut ours.outgoing[at]
            } else {
                let claim = ours.rings.claim(range).map_err(|error| error.to_string())?;
                ours.incoming[at].post(0, Work::Open(claim.into())).map_err(refused)?;
                &mut ours.incoming[at]
            };
            match next(pair).await {
                Done::Opened(_, ring) => rings.push(ring),
                other => return Err(format!("a ring could not be opened ({other:?})")),
            }
        }
        Ok(rings)
    };
    let opened = opened.await;
    let rings = opened.as_ref().map(|rings| {
        let mut bytes = Vec::new();
        rings.iter().for_each(|&ring| put_remote(&mut bytes, ring));
        bytes
    });
    let said = rings.as_ref().map(Vec::as_slice).map_err(|why| why.as_str());
    let heard = messages.exchange(end, 2, said).await?;
    let (own, to) = match (opened, heard) {
        (Ok(own), Ok(theirs)) => {
            let mut reader = Reader(&theirs);
            let to = own.iter().map(|_| reader.remote()).collect::<Result<Vec<Remote>>>()?;
            (own, to)
        }
        (Err(why), _) => return Ok(Shaken::Tcp(why)),
        (_, Err(why)) => return Ok(Shaken::Tcp(format!("the peer says: {why}"))),
    };
    // One packet over each pair, as long as the path's MTU or the ring allows.
    let length = u64::from(mtu).min(RING);
    let probed =
        if pulls { probe_by_read(&mut ours, &to, length).await } else { probe(&mut ours, &to, length).await };
    let said = probed.as_ref().map(|()| &[][..]).map_err(|why| why.as_str());
    let heard = messages.exchange(end, 3, said).await?;
    match (probed, heard) {
        (Ok(()), Ok(_)) => {
            let Ours { device, outgoing, incoming, .. } = ours;
            let outgoing = outgoing.into_iter().zip(to).collect();
            let with_ring = |(pair, ring): (_, Remote)| (pair, ring.key, ring.address as usize);
            let incoming = incoming.into_iter().zip(own).map(with_ring).collect();
            let pairs = Pairs { device, outgoing, incoming, pulls, theirs, mtu };
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

/// Reads one packet over the incoming pair. Meanwhile the peer reads one over our outgoing pair. Where receivers
/// read, there are no others.
async fn probe_by_read(ours: &mut Ours, from: &[Remote], length: u64) -> std::result::Result<(), String> {
    let (outgoing, incoming, from) = (&mut ours.outgoing[0], &mut ours.incoming[0], from[0]);
    let memory = Arena::new(length).map_err(|error| error.to_string())?;
    ours.device.register(&memory).map_err(|error| error.to_string())?;
    let into = memory.claim(memory.range()).map_err(|error| error.to_string())?;
    incoming.post(0, Work::Read { into, from }).map_err(|error| error.to_string())?;
    // Poll the outgoing pair as well: the peer's read may progress only while this end polls.
    let other = async { Err::<(), _>(format!("the peer's first read failed ({:?})", next(outgoing).await)) };
    let read = async {
        match next(incoming).await {
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

/// Writes one packet over each outgoing pair and waits for the peer's packet on each incoming pair. The path
/// may carry TCP but no RDMA, or no packets of that length. This is also FedRDMA's Link-Enable (section 4.3):
/// a device that must first learn the path does so before data is sent.
async fn probe(ours: &mut Ours, to: &[Remote], length: u64) -> std::result::Result<(), String> {
    let memory = Arena::new(length).map_err(|error| error.to_string())?;
    ours.device.register(&memory).map_err(|error| error.to_string())?;
    let bytes = memory.lend(Range::new(0, length)).map_err(|error| error.to_string())?;
    for (pair, &to) in ours.outgoing.iter_mut().zip(to) {
        let work = Work::Note { bytes: vec![bytes.clone()], to, note: PROBE };
        pair.post(0, work).map_err(|error| error.to_string())?;
    }
    let outgoing = async {
        for pair in &mut ours.outgoing {
            match next(pair).await {
                Done::Written(_) => {}
                Done::Lost(Fault::Retries) => return Err(blocked("the peer does not answer", length)),
                other => return Err(format!("the first write failed ({other:?})")),
            }
        }
        Ok(())
    };
    let incoming = async {
        for pair in &mut ours.incoming {
            match next(pair).await {
                Done::Noted(PROBE) => {}
                other => return Err(format!("the peer's first write failed ({other:?})")),
            }
        }
        Ok(())
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
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use thalweg_conformance::Factory;
    use thalweg_transport::memory::Memory;
    use thalweg_verbs::pretend::{Behaviour, Fabric, Pretend};

    use super::*;

    /// Shakes hands; the connecting end may come from a build with baselines.
    async fn shaken(theirs: (Style, usize), ours: (Style, usize)) -> [Shaken; 2] {
        let choices = |(style, pairs)| {
            let choices = Choices::read(&Default::default()).unwrap();
            Choices { style, pairs, ..choices }
        };
        let fabric = Arc::new(Fabric::default());
        let pair = Factory::new(Arc::new(Memory), "memory://hello:0").pair().await;
        let device = || -> std::result::Result<Arc<dyn Device>, String> {
            Ok(Arc::new(Pretend::new(&fabric, Behaviour::default())))
        };
        let (theirs, ours) = (choices(theirs), choices(ours));
        let (connected, accepted) = tokio::join!(
            shake(&*pair.client, End::Connecting, device(), &theirs),
            shake(&*pair.server, End::Listening, device(), &ours),
        );
        [connected.unwrap(), accepted.unwrap()]
    }

    #[tokio::test]
    async fn a_mode_that_the_build_lacks_makes_a_link_tcp_that_says_why() {
        for theirs in [Style::Slot, Style::Printed] {
            for shaken in shaken((theirs, 1), (Style::Writes, 1)).await {
                match shaken {
                    Shaken::Rdma(_) => assert!(theirs.is_available()),
                    Shaken::Tcp(why) => {
                        assert!(!theirs.is_available() && why.contains("no baselines"), "{why}")
                    }
                }
            }
            // Nobody writes to an end that reads.
            let both = shaken((theirs, 1), (Style::Pull, 1)).await;
            assert!(both.iter().all(|shaken| matches!(shaken, Shaken::Rdma(_))));
        }
    }

    /// Both ends use as many pairs as the end with fewer has, and one where a receiver reads.
    #[tokio::test]
    async fn the_ends_agree_on_the_lower_number_of_pairs() {
        let writes = |pairs| (Style::Writes, pairs);
        let cases = [
            (writes(1), writes(1), 1),
            (writes(16), writes(3), 3),
            (writes(1), writes(16), 1),
            (writes(4), (Style::Pull, 1), 1),
        ];
        for (theirs, ours, agreed) in cases {
            for shaken in shaken(theirs, ours).await {
                let Shaken::Rdma(pairs) = shaken else { panic!("{theirs:?} and {ours:?}: tcp") };
                assert_eq!((pairs.outgoing.len(), pairs.incoming.len()), (agreed, agreed));
            }
        }
    }

    /// A listening end makes nothing before the peer has said hello, and then no more pairs than both use.
    #[tokio::test]
    async fn a_peer_that_says_nothing_costs_no_pair() {
        let fabric = Arc::new(Fabric::default());
        let device: Arc<dyn Device> = Arc::new(Pretend::new(&fabric, Behaviour::default()));
        let pair = Factory::new(Arc::new(Memory), "memory://silent:0").pair().await;
        let choices = Choices { pairs: MOST_PAIRS, ..Choices::read(&Default::default()).unwrap() };
        let mut listening = pin!(shake(&*pair.server, End::Listening, Ok(device.clone()), &choices));
        assert!(listening.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(fabric.cut(), 0, "pairs for a silent peer");
        let theirs = prepare(Towards { device, round_trip: None }, 3).unwrap();
        let messages = Messages(&*pair.client);
        let hello = async {
            messages.say(1, Ok(&theirs.hello(Style::Writes).encode())).await.unwrap();
            messages.hear_hello().await.unwrap()
        };
        let answer = tokio::select! {
            _ = &mut listening => panic!("it did not wait for the rings"),
            answer = hello => answer,
        };
        assert_eq!(
            (answer.unwrap().endpoints.len(), fabric.cut()),
            (3, 6 + 6),
            "three each way, at both ends"
        );
    }
}
