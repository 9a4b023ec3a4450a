//! The carrier of one party. It has two connections: one publishes, one consumes. During an alarm, RabbitMQ
//! stops reading from connections that publish. Acknowledgements free its memory, so they must reach it by
//! the other connection.

use std::sync::Arc;

use async_trait::async_trait;
use lapin::options::{
    BasicConsumeOptions, BasicQosOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::ShortString;
use lapin::{Channel, Consumer};
use thalweg_messages::{Carrier, Event, Mailbox, MemberId, Message, Nature, Network, Side};
use thalweg_transport::{Address, Chosen, Counters, Error, Options, Result};
use tokio::sync::{mpsc, Mutex};
use tokio::time::timeout;

use crate::broker::{is_locked, no_arguments, Broker};
use crate::ending::Ending;
use crate::explain::explain;
use crate::inbox::Inbox;
use crate::names::Names;
use crate::outbox::Outbox;
use crate::presence::{knock, Absent, Known};
use crate::{wire_bytes, CLOSING, WINDOW};

const OPEN: &str = "open";

pub(crate) struct AmqpCarrier {
    side: Side,
    address: Address,
    names: Names,
    max_message: usize,
    publishing: Broker,
    consuming: Broker,
    /// The channel of the consumer, to declare queues and exchanges.
    channel: Channel,
    outbox: Outbox,
    inbox: Mutex<Inbox>,
    known: Known,
    ending: Arc<Ending>,
}

impl AmqpCarrier {
    pub(crate) async fn open(
        side: Side,
        address: &Address,
        options: &Options,
        chosen: &Chosen,
    ) -> Result<Self> {
        let place = Address { job: None, ..address.clone() };
        let names = Names::new(address.job.as_deref(), chosen.text("exchange"));
        let ending = Arc::new(Ending::default());
        let connect = |what| Broker::open(&place, options, chosen.text("vhost"), what, &ending);
        let (consuming, publishing) = tokio::try_join!(connect("in"), connect("out"))?;

        let channel = consuming.channel().await?;
        let prefetch = u16::try_from(chosen.number("prefetch")).unwrap_or(u16::MAX);
        let consumer = settle(side, &names, &channel, &consuming, prefetch).await;
        let consumer = consumer.map_err(|e| explain(OPEN, address, &e))?;

        let known = Known::default();
        let (tell, absentees) = mpsc::unbounded_channel();
        let absent = Absent { names: names.clone(), known: known.clone(), tell };
        if side != Side::Listener {
            known.add(Mailbox::Listener);
        }
        let outbox = publish_on(&publishing, chosen.flag("confirms"), address, &ending, &absent).await?;
        let max_message = usize::try_from(chosen.number("max_message")).unwrap_or(usize::MAX);
        let rest = (address.clone(), ending.clone(), max_message);
        let inbox = Mutex::new(Inbox::new(consumer, channel.clone(), prefetch, absentees, rest));
        let address = address.clone();
        Ok(Self {
            side,
            address,
            names,
            max_message,
            publishing,
            consuming,
            channel,
            outbox,
            inbox,
            known,
            ending,
        })
    }
}

/// Opens the channels of the publishing connection: one for messages, and one for knocks.
async fn publish_on(
    broker: &Broker,
    confirms: bool,
    address: &Address,
    ending: &Arc<Ending>,
    absent: &Absent,
) -> Result<Outbox> {
    let lane = channel_that(broker, confirms).await?;
    let asking = channel_that(broker, true).await?;
    tokio::spawn(knock(asking, absent.clone(), ending.clone()));
    Ok(Outbox::new(lane, confirms, address.clone(), ending.clone(), absent.clone()))
}

fn mailbox_of(side: Side) -> Mailbox {
    match side {
        Side::Listener => Mailbox::Listener,
        Side::Member(id) => Mailbox::Member(id),
    }
}

/// Opens a channel, with or without publisher confirms.
async fn channel_that(broker: &Broker, confirms: bool) -> Result<Channel> {
    let channel = broker.channel().await?;
    if confirms {
        let confirming = channel.confirm_select(ConfirmSelectOptions::default()).await;
        confirming.map_err(|e| explain(OPEN, &broker.place, &e))?;
    }
    Ok(channel)
}

/// Declares and binds the queue of `side`, and consumes from it.
async fn settle(
    side: Side,
    names: &Names,
    channel: &Channel,
    broker: &Broker,
    prefetch: u16,
) -> lapin::Result<Consumer> {
    let own = mailbox_of(side);
    let queue = ShortString::from(names.queue(own));
    if let Side::Member(_) = side {
        look_for_the_listener(names, broker).await?;
    }
    let ours = QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.clone(), ours, no_arguments()).await?;
    if side == Side::Listener {
        let (name, kind) = (ShortString::from(names.exchange()), names.kind.clone());
        channel.exchange_declare(name, kind, ExchangeDeclareOptions::default(), no_arguments()).await?;
    }
    let groups = if side == Side::Listener { None } else { names.binding(Mailbox::Group) };
    for key in [names.binding(own), groups].into_iter().flatten() {
        bind(channel, names, own, key).await?;
    }
    channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
    let subscribed = BasicConsumeOptions { exclusive: true, ..BasicConsumeOptions::default() };
    channel.basic_consume(queue, ShortString::from(""), subscribed, no_arguments()).await
}

/// Fails with 404 if the job has no listener. If it has one, the broker answers 405, since the queue belongs
/// to the listener's connection.
async fn look_for_the_listener(names: &Names, broker: &Broker) -> lapin::Result<()> {
    let Ok(channel) = broker.channel().await else {
        // If the connection has ended, the next step fails.
        return Ok(());
    };
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let queue = ShortString::from(names.queue(Mailbox::Listener));
    match channel.queue_declare(queue, passive, no_arguments()).await {
        Err(error) if !is_locked(&error) => Err(error),
        _ => Ok(()),
    }
}

async fn bind(channel: &Channel, names: &Names, own: Mailbox, key: String) -> lapin::Result<()> {
    let (queue, exchange) = (ShortString::from(names.queue(own)), ShortString::from(names.exchange()));
    channel.queue_bind(queue, exchange, key.into(), QueueBindOptions::default(), no_arguments()).await
}

#[async_trait]
impl Carrier for AmqpCarrier {
    fn nature(&self) -> Nature {
        Nature {
            max_message: self.max_message,
            group: true,
            lossy: false,
            window: WINDOW,
            // Head and body are joined, cut into frames, and put into the connection's buffer.
            copies_out: 3,
            // Frames are taken from the connection's buffer, and joined.
            copies_in: 2,
        }
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    async fn publish(&self, to: Mailbox, message: Message<'_>) -> Result<u64> {
        let route = self.names.route(to);
        let wire = wire_bytes(message.length(), &route.0, &route.1);
        self.outbox.publish(route, message).await?;
        self.known.add(to);
        Ok(wire)
    }

    async fn flush(&self) -> Result<()> {
        self.outbox.flush().await
    }

    async fn next(&self) -> Result<Event> {
        self.inbox.lock().await.next().await
    }

    fn network(&self, _: Mailbox) -> Network {
        let (mut out, mut back) = (Counters::default(), Counters::default());
        self.publishing.socket().tell(&mut out);
        self.consuming.socket().tell(&mut back);
        Network {
            retransmissions: out.retransmissions.map(|n| n + back.retransmissions.unwrap_or(0)),
            round_trip: out.round_trip,
            congestion: out.congestion,
        }
    }

    fn held(&self) -> Option<String> {
        self.publishing.alarm()
    }

    fn forget(&self, member: MemberId) {
        self.known.remove(Mailbox::Member(member));
    }

    async fn close(&self) {
        // During an alarm the broker takes nothing, so do not wait for it.
        if self.publishing.alarm().is_none() {
            let _ = timeout(CLOSING, self.outbox.flush()).await;
        }
        if self.side == Side::Listener {
            let name = ShortString::from(self.names.exchange());
            let deletion = self.channel.exchange_delete(name, ExchangeDeleteOptions::default());
            let _ = timeout(CLOSING, deletion).await;
        }
        self.ending.set(Error::closed("carry", "it was closed here"));
        tokio::join!(self.publishing.close(), self.consuming.close());
    }
}

impl Drop for AmqpCarrier {
    fn drop(&mut self) {
        self.ending.set(Error::closed("carry", "it was dropped"));
    }
}
