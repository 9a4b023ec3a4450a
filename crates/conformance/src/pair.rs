//! Both ends of a link, and a task that keeps receiving.

use std::future::{poll_fn, Future};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_transport::{Address, ErrorKind, Link, Listener, Outgoing, Result, SendReport, Sink};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::{Factory, Recorded, Recorder};

/// A listener with one link, of which the test holds both ends.
pub struct Pair {
    /// The listener that accepted the link.
    pub listener: Box<dyn Listener>,
    /// The end that connected.
    pub client: Arc<dyn Link>,
    /// The end that was accepted.
    pub server: Arc<dyn Link>,
}

impl Pair {
    /// Listens, connects and accepts.
    ///
    /// # Panics
    /// If any of these fails.
    pub async fn connect(factory: &Factory) -> Self {
        let listener = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
        let (client, server) = link(factory, &*listener).await;
        Self { listener, client, server }
    }
}

/// Makes another link. Returns the end that connected and the end that was accepted.
pub(crate) async fn link(factory: &Factory, listener: &dyn Listener) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let address: Address = listener.address();
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let connect = async { factory.transport.connect(&address, &factory.connect).await.unwrap() };
    tokio::join!(connect, accept)
}

/// The message that ends a [`Pump`].
const STOP: &[u8] = b"stop pumping";

/// A task that receives until the link ends. It passes on the control messages.
pub struct Pump {
    messages: mpsc::Receiver<Result<Bytes>>,
    task: AbortHandle,
}

impl Pump {
    /// Starts to receive into `sink`.
    pub fn start<S: Sink + 'static>(link: &Arc<dyn Link>, sink: &Arc<S>) -> Self {
        let (pass, messages) = mpsc::channel(256);
        let (link, sink) = (link.clone(), sink.clone());
        let task = tokio::spawn(async move {
            loop {
                let outcome = link.receive(&*sink).await;
                let ended = outcome.as_ref().map_or(true, |message| *message == STOP);
                if pass.send(outcome).await.is_err() || ended {
                    return;
                }
            }
        });
        Self { messages, task: task.abort_handle() }
    }

    /// The next control message, or the error with which receiving ended.
    ///
    /// # Panics
    /// If it is called again after the error.
    pub async fn next(&mut self) -> Result<Bytes> {
        self.messages.recv().await.unwrap()
    }

    /// Ends the task with a message from the other end. Whoever receives next on this link then gets
    /// everything that is sent from now on. (If a pump is dropped instead, its task ends a little later.)
    ///
    /// # Panics
    /// If the link has ended.
    pub async fn stop(mut self, from: &Arc<dyn Link>) {
        from.send_control(Bytes::from_static(STOP)).await.unwrap();
        while let Some(message) = self.messages.recv().await {
            message.unwrap();
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sends a whole update, waits until it has arrived, and checks that it equals `source`.
pub(crate) async fn transfer(
    from: &Arc<dyn Link>,
    to: &Arc<dyn Link>,
    update: &Outgoing,
    source: &Arena,
) -> (SendReport, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::new(source.len()));
    let mut pump = Pump::start(to, &recorder);
    let report = from.send_update(update).await.unwrap();
    settle(from, &mut pump, &recorder, update.payload_bytes()).await;
    pump.stop(from).await;
    recorder.check(source);
    (report, recorder)
}

/// Waits until `bytes` bytes were stored. If chunks may be lost, waits for a message that is sent after them
/// instead.
pub(crate) async fn settle(from: &Arc<dyn Link>, pump: &mut Pump, recorder: &Recorder, bytes: u64) {
    if from.capabilities().reliable {
        recorder.until(|seen| seen.ranges.bytes() >= bytes).await;
        let seen = recorder.seen();
        assert!(seen.stored.iter().all(|(_, outcome)| outcome.is_ok()), "a chunk came damaged");
    } else {
        from.send_control(Bytes::from_static(b"that was all")).await.unwrap();
        assert_eq!(pump.next().await.unwrap(), "that was all");
    }
}

/// A receive that a test polls only as long as it wants, to simulate a slow peer.
pub(crate) type Receive<'a> = Pin<Box<dyn Future<Output = Result<Bytes>> + Send + 'a>>;

/// Receives until `recorder` satisfies `condition`. Then it stops polling, but does not drop the receive.
pub(crate) async fn receive_until(
    receive: &mut Receive<'_>,
    recorder: &Recorder,
    condition: impl FnMut(&Recorded) -> bool,
) {
    tokio::select! {
        biased;
        message = receive => panic!("{message:?} came where chunks were due"),
        () = recorder.until(condition) => {}
    }
}

/// A send of an update that the test polls itself.
pub(crate) type Sending<'a> = Pin<Box<dyn Future<Output = Result<SendReport>> + Send + 'a>>;

/// Blocks a sender: its peer takes one chunk and no more, and the sender is polled until all buffers on the
/// way are full.
pub(crate) async fn stall(send: &mut Sending<'_>, receive: &mut Receive<'_>, recorder: &Recorder) {
    tokio::select! {
        biased;
        sent = &mut *send => panic!("{sent:?} though the peer does not receive; raise Factory::bulk"),
        () = receive_until(receive, recorder, |seen| !seen.placed.is_empty() || !seen.prepared.is_empty()) => {}
    }
    for _ in 0..1_000 {
        let polled = poll_once(send).await;
        assert!(polled.is_pending(), "{polled:?} though the peer does not receive; raise Factory::bulk");
        tokio::task::yield_now().await;
    }
}

/// Polls a future once, so that it starts.
pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

/// Starts to send an update in a task, which drops the update at the end.
pub(crate) fn send_in_task(
    link: &Arc<dyn Link>,
    update: Outgoing,
) -> tokio::task::JoinHandle<Result<SendReport>> {
    let link = link.clone();
    tokio::spawn(async move { link.send_update(&update).await })
}

/// Sends a control message in one direction and asserts that it arrives.
pub(crate) async fn say(from: &Arc<dyn Link>, to: &Arc<dyn Link>, text: &'static str) {
    let sink = Recorder::new(0).only(|_| false);
    let message = Bytes::from_static(text.as_bytes());
    let (sent, received) = tokio::join!(from.send_control(message), to.receive(&sink));
    sent.unwrap();
    assert_eq!(received.unwrap(), text);
}

/// Receives and discards control messages until receiving fails. Asserts that the error is
/// [`ErrorKind::Closed`].
pub(crate) async fn until_closed(link: &Arc<dyn Link>, sink: &dyn Sink) {
    loop {
        if let Err(error) = link.receive(sink).await {
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            return;
        }
    }
}
