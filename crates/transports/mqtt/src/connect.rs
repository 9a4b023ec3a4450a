//! Opens a carrier: connects over TCP and TLS, sends CONNECT, subscribes, and finds out whether the job has a
//! listener.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use thalweg_messages::{Care, Mailbox, MemberId, Message, Nature, Side, HEAD_BYTES};
use thalweg_sockets::dial::{in_time, reach};
use thalweg_sockets::socket::Socket;
use thalweg_sockets::tls;
use thalweg_transport::{Address, Error, ErrorKind, Options, Result};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use crate::carrier::{Core, MqttCarrier, Notification};
use crate::inbox::Inbox;
use crate::outbox::Outbox;
use crate::packets::{publish_overhead, Hello, Incoming, Limits, Retain, Small, Version};
use crate::topics::Topics;
use crate::{MAX_CHUNK, SETTINGS};

const CONNECT: &str = "connect";
/// Keep-alive interval (MQTT 3.1.1, section 3.1.2.10). The session's own liveness rule notices a dead peer
/// earlier. This one finds connections that the network has silently lost.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// Longest time to leave in good order.
pub(crate) const LEAVE: Duration = Duration::from_secs(5);
/// How long a member waits for the listener's retained message after the subscription was confirmed. Brokers
/// may send it later than the confirmation.
const HERE: Duration = Duration::from_millis(500);
/// A member's message when it leaves.
pub(crate) const HUNG_UP: &str = "has hung up";
/// The message in its last will.
const VANISHED: &str = "has lost its connection to the broker";
/// Maximum number of unacknowledged QoS 1 and 2 messages if the broker does not state a limit. This is
/// Mosquitto's default.
const INFLIGHT: u16 = 20;
/// The limit that this end states to the broker.
const INFLIGHT_HERE: u16 = 1024;
/// Maximum cost of chunks in flight on a link.
const WINDOW: u64 = 4 << 20;
/// Least payload that a message must have room for.
const LEAST: usize = 1 << 10;
/// Room for the longest topic and packet header, generously.
const SLACK: usize = 1 << 10;

type Reading = Box<dyn AsyncRead + Send + Unpin>;
type Writing = Box<dyn AsyncWrite + Send + Unpin>;

/// Opens a carrier within [`Options::connect_timeout`].
pub(crate) async fn open(side: Side, address: &Address, options: &Options) -> Result<MqttCarrier> {
    in_time(address, options, attempt(side, address, options)).await
}

async fn attempt(side: Side, address: &Address, options: &Options) -> Result<MqttCarrier> {
    if options.streams > 1 {
        let context = format!("{} streams; a party has one connection to the broker", options.streams);
        return Err(Error::new(ErrorKind::Unsupported, CONNECT, context).hint("leave out transport.streams"));
    }
    let chosen = options.own.read(SETTINGS)?;
    let version = if chosen.text("version") == "3.1.1" { Version::V311 } else { Version::V5 };
    let qos = chosen.number("qos") as u8;
    let retain = chosen.flag("retain");
    if retain && version == Version::V311 {
        let context = "retain with version 3.1.1, which cannot say when the broker is to forget";
        return Err(Error::new(ErrorKind::Unsupported, CONNECT, context)
            .hint("leave out transport.options.version or retain"));
    }
    let wanted_packet = chosen.number("max_packet") as usize;
    let address = named(side, address)?;
    let topics = Topics::new(&prefix(chosen.text("prefix"))?, address.job.as_deref().unwrap_or_default());
    let client = client_name()?;
    let (socket, reading, mut writing) = dial(&address, options).await?;
    let most = MAX_CHUNK as usize + HEAD_BYTES + SLACK;
    let will = match side {
        Side::Listener => (topics.here(), "", true),
        Side::Member(id) => (topics.goodbye(id), VANISHED, false),
    };
    let hello = Hello {
        client: &client,
        keep_alive: KEEP_ALIVE.as_secs() as u16,
        login: options.login.as_ref(),
        will,
        max_packet: most as u32,
        max_inflight: INFLIGHT_HERE,
    };
    let hello = version.connect(&hello).map_err(|why| Error::new(ErrorKind::System, CONNECT, why))?;
    let broke = |e: std::io::Error| tls::explain(CONNECT, &address, &e);
    writing.write_all(&hello).await.map_err(broke)?;
    writing.flush().await.map_err(broke)?;
    let mut inbox = Inbox::new(reading, version, most);
    let limits = accepted(&mut inbox, &address, options).await?;
    suits(&limits, qos, &address)?;
    let packet = limits.max_packet.map_or(most, |n| most.min(n as usize));
    let packet = if wanted_packet > 0 { packet.min(wanted_packet) } else { packet };
    let overhead = publish_overhead(&topics.mail(Mailbox::Member(MemberId([0xff; 16]))));
    let max_message = (MAX_CHUNK as usize + HEAD_BYTES).min(packet.saturating_sub(overhead));
    if max_message < HEAD_BYTES + LEAST {
        let context = format!("packets may have {packet} bytes, which leaves {max_message} for a message");
        return Err(Error::new(ErrorKind::Unsupported, CONNECT, context).hint(format!(
            "raise the broker's limit, or transport.options.max_packet, to {} bytes or more",
            overhead + HEAD_BYTES + LEAST
        )));
    }
    let outbox = Outbox::open(writing, KEEP_ALIVE, version == Version::V5);
    outbox.allow(limits.max_inflight.unwrap_or(INFLIGHT).clamp(1, INFLIGHT_HERE));
    let nature = Nature {
        max_message,
        group: true,
        lossy: false,
        window: WINDOW,
        copies_out: 1 + u64::from(options.tls.is_some()),
        copies_in: u64::from(options.tls.is_some()),
    };
    let core = Core {
        side,
        address,
        topics,
        version,
        qos,
        nature,
        retain: retain && side == Side::Listener,
        retained: Mutex::default(),
        listener: Mutex::default(),
        socket,
        outbox,
        unreleased: Mutex::new(HashSet::new()),
    };
    let carrier = MqttCarrier::begin(core, inbox);
    let opened = match side {
        Side::Listener => appear(&carrier, &client).await,
        Side::Member(id) => join(&carrier, id).await,
    };
    if let Err(error) = &opened {
        // A proper DISCONNECT prevents the last will.
        carrier.core().outbox.send(Small::Bye);
        carrier.core().outbox.end(&error.to_string());
    }
    opened.map(|()| carrier)
}

/// Completes the address with a job. A listener without one gets a random name, as it would get a random
/// port.
///
/// # Errors
/// [`ErrorKind::Address`] if a member's address has no job, or an address has no port.
fn named(side: Side, address: &Address) -> Result<Address> {
    let mut address = address.clone();
    match (&address.job, side) {
        (Some(_), _) => {}
        (None, Side::Listener) => address.job = Some(format!("job-{}", &client_name()?[2..14])),
        (None, Side::Member(_)) => {
            let context = format!("{address} says no job, and a broker has many");
            return Err(Error::new(ErrorKind::Address, CONNECT, context)
                .hint("take the address that the server prints, as mqtt://HOST:PORT/JOB"));
        }
    }
    if address.port.unwrap_or(0) == 0 {
        let context = format!("{address} has no port, and this transport starts no broker");
        return Err(Error::new(ErrorKind::Address, CONNECT, context)
            .hint("give the broker's port; `thalweg run` starts a broker of its own"));
    }
    Ok(address)
}

/// Checks the prefix of all topics.
fn prefix(text: &str) -> Result<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '/' | '.');
    if text.is_empty() || text.starts_with('/') || text.ends_with('/') || !text.chars().all(good) {
        let context = format!("prefix {text:?} cannot begin topics");
        return Err(Error::new(ErrorKind::Unsupported, CONNECT, context)
            .hint("use letters, digits, dots, dashes and underscores, with slashes between"));
    }
    Ok(text.into())
}

/// A random client identifier, short enough for all brokers (MQTT 3.1.1, section 3.1.3.1).
fn client_name() -> Result<String> {
    Ok(format!("tw{}", &MemberId::random()?.to_string()[..20]))
}

/// Connects to the broker, with TLS if the options say so.
async fn dial(address: &Address, options: &Options) -> Result<(Socket, Reading, Writing)> {
    let tls = options.tls.as_ref().map(|tls| tls::client(address, tls)).transpose()?;
    let (stream, _) = reach(address, options).await.map_err(no_broker)?;
    let socket = Socket::new(stream).map_err(|e| Error::io(CONNECT, address, &e))?;
    let Some((config, name)) = tls else {
        return Ok((socket.clone(), Box::new(socket.clone()), Box::new(socket)));
    };
    let connected = TlsConnector::from(config).connect(name, socket.clone()).await;
    let stream = connected.map_err(|e| tls::explain(CONNECT, address, &e))?;
    let (reading, writing) = tokio::io::split(stream);
    Ok((socket, Box::new(reading), Box::new(writing)))
}

/// Adds a hint to the error of a broker that does not answer.
fn no_broker(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unreachable => error.hint("start the broker first, or check the address"),
        _ => error,
    }
}

/// Reads the broker's CONNACK and returns its limits.
async fn accepted(inbox: &mut Inbox, address: &Address, options: &Options) -> Result<Limits> {
    let answer = inbox.next().await.map_err(|error| match error.kind() {
        ErrorKind::Closed => Error::closed(CONNECT, format!("{address} hung up before it answered"))
            .hint("check whether the broker wants TLS, and whether it speaks this version of MQTT"),
        _ => error,
    })?;
    match answer.0 {
        Incoming::Accepted(limits) => Ok(limits),
        Incoming::Refused(why, true) => {
            let context = format!("{address} refused the login: {why}");
            Err(Error::new(ErrorKind::Security, CONNECT, context).hint(if options.login.is_some() {
                "correct the file that security.login_file names"
            } else {
                "give the broker's user and password in a file with security.login_file"
            }))
        }
        Incoming::Refused(why, false) => {
            let context = format!("{address} refused the connection: {why}");
            Err(Error::new(ErrorKind::Unsupported, CONNECT, context)
                .hint("take the other transport.options.version, or see the broker's log"))
        }
        other => {
            let context = format!("{address} answered {other:?}");
            Err(Error::new(ErrorKind::Corrupt, CONNECT, context).hint("check that it is an MQTT broker"))
        }
    }
}

/// Checks that the broker supports the QoS and retained messages.
fn suits(limits: &Limits, qos: u8, address: &Address) -> Result<()> {
    let missing = if qos > limits.max_qos {
        format!("has QoS {} at most", limits.max_qos)
    } else if !limits.retain {
        "retains no messages, and by one a listener is found".into()
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Unsupported, CONNECT, format!("{address} {missing}"))
        .hint("lower transport.options.qos, or change the broker's configuration"))
}

/// Registers a listener: checks that the job has none yet, subscribes, and publishes the retained message
/// that says who it is.
async fn appear(carrier: &MqttCarrier, client: &str) -> Result<()> {
    if let Some(other) = who_is_here(carrier, vec![carrier.core().topics.here()], Duration::ZERO).await? {
        let other = String::from_utf8_lossy(&other[..other.len().min(32)]).into_owned();
        let context = format!("{} has a listener already ({other})", carrier.core().address);
        return Err(Error::new(ErrorKind::InUse, "listen", context)
            .hint("take another job's name behind the slash; one that was killed is forgotten within 90 s"));
    }
    let own = Bytes::copy_from_slice(client.as_bytes());
    *carrier.core().listener.lock().unwrap_or_else(PoisonError::into_inner) = own;
    let topics = vec![carrier.core().topics.mail(Mailbox::Listener), carrier.core().topics.all_goodbyes()];
    subscribe(carrier, topics).await?;
    let here = Message { head: b"", body: client.as_bytes(), care: Care::Control };
    carrier.core().put(&carrier.core().topics.here(), carrier.core().qos, Retain::Yes, here).await?;
    settle(carrier, carrier.core().outbox.flush()).await?
}

/// Registers a member: subscribes to its mailbox, the group and the retained model. Fails if the job has no
/// listener.
async fn join(carrier: &MqttCarrier, id: MemberId) -> Result<()> {
    let names = &carrier.core().topics;
    let [own, group] = [Mailbox::Member(id), Mailbox::Group].map(|mailbox| names.mail(mailbox));
    // Subscribe to the model last. It may be retained, and it is long.
    let topics = vec![names.here(), own, group, names.all_model()];
    let Some(listener) = who_is_here(carrier, topics, HERE).await? else {
        let context = format!("the broker is there, and no server of {}", carrier.core().address);
        return Err(Error::new(ErrorKind::Unreachable, CONNECT, context)
            .hint("start the server first, or check the job's name behind the slash"));
    };
    *carrier.core().listener.lock().unwrap_or_else(PoisonError::into_inner) = listener;
    Ok(())
}

/// Subscribes to topics, among them that of the listener's retained message. Returns the content of that
/// message, if there is one. `timeout` is how long to wait for it after the broker's answers.
async fn who_is_here(carrier: &MqttCarrier, topics: Vec<String>, timeout: Duration) -> Result<Option<Bytes>> {
    let mut here = subscribe(carrier, topics).await?;
    // A flush shows that the broker has processed the subscription. It has sent the retained message before,
    // or will soon.
    if here.is_none() {
        here = settle_seeing(carrier, carrier.core().outbox.flush()).await?.1;
    }
    if here.is_none() && !timeout.is_zero() {
        here = settle_seeing(carrier, tokio::time::sleep(timeout)).await?.1;
    }
    Ok(here)
}

/// Subscribes to topics. Returns the listener's retained message, if it arrived meanwhile.
async fn subscribe(carrier: &MqttCarrier, topics: Vec<String>) -> Result<Option<Bytes>> {
    let answer = carrier
        .core()
        .outbox
        .order(|id| carrier.core().version.subscribe(id, &topics, carrier.core().qos))?;
    let (done, here) = settle_seeing(carrier, answer).await?;
    if done != Ok(true) {
        let context = format!("{} refused a subscription to {}", carrier.core().address, topics.join(", "));
        return Err(Error::new(ErrorKind::Security, CONNECT, context)
            .hint("let this login read and write the job's topics at the broker"));
    }
    Ok(here)
}

/// Waits for `until`, and keeps the events that arrive meanwhile.
async fn settle<T>(carrier: &MqttCarrier, until: impl std::future::Future<Output = T>) -> Result<T> {
    Ok(settle_seeing(carrier, until).await?.0)
}

/// The same, and returns the listener's retained message if it arrived. Looks at arrived packets first: the
/// broker's answer and the retained message before it often arrive together.
async fn settle_seeing<T>(
    carrier: &MqttCarrier,
    until: impl std::future::Future<Output = T>,
) -> Result<(T, Option<Bytes>)> {
    let mut until = std::pin::pin!(until);
    let mut here = None;
    loop {
        tokio::select! {
            biased;
            seen = carrier.step() => match seen? {
                Notification::Here(who) => here = Some(who),
                Notification::Event(event) => carrier.keep(event),
            },
            done = &mut until => return Ok((done, here)),
        }
    }
}
