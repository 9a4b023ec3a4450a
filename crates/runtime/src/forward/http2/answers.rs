//! The near end's answers to calls, given before the server has answered.
//!
//! A program that waits for an answer after each message sends only one message in each round trip to a
//! distant server. If the near end answers, the program sends its next message at once. Such an answer says
//! only that the near end has the request.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::ResponseFuture;
use h2::server::SendResponse;
use http::request::Parts;
use http::{header, HeaderMap, HeaderValue, Response};

use super::order::{AFTER, ANSWERED};
use super::Calls;
use crate::forward::events::{Event, Events};
use crate::lock;
use thalweg_wire::text::{plain, MAX_REASON};

const STATUS: &str = "grpc-status";
const MESSAGE: &str = "grpc-message";

/// The methods that are answered, each with its message in a gRPC frame.
#[derive(Debug, Default)]
pub(crate) struct Answers(HashMap<String, Bytes>);

impl Answers {
    /// Answers each method with a message. An empty message is a protobuf message with all fields at their
    /// defaults.
    pub fn new(messages: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        let framed = |message: Vec<u8>| {
            let mut frame = BytesMut::with_capacity(5 + message.len());
            frame.put_u8(0); // not compressed
            frame.put_u32(message.len() as u32);
            frame.extend(message);
            frame.freeze()
        };
        Self(messages.into_iter().map(|(method, message)| (method, framed(message))).collect())
    }

    fn to(&self, parts: &Parts) -> Option<Bytes> {
        let kind = parts.headers.get(header::CONTENT_TYPE)?;
        kind.as_bytes().starts_with(b"application/grpc").then(|| self.0.get(parts.uri.path()).cloned())?
    }
}

/// The answers that the near end gave on one connection.
pub(crate) struct Promises {
    answers: Arc<Answers>,
    events: Events,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Calls that were answered here and that the server has not answered yet.
    open: BTreeSet<u64>,
    counts: Calls,
}

/// The near end's answer to one call.
pub(super) struct Promise {
    number: u64,
    message: Bytes,
    method: String,
    kind: Option<HeaderValue>,
}

impl Promises {
    pub fn new(answers: Arc<Answers>, events: Events) -> Self {
        Self { answers, events, state: Mutex::default() }
    }

    /// Counts of the calls, once no more arrive.
    pub fn counts(&self) -> Calls {
        let state = lock(&self.state);
        let Calls { unkept, .. } = state.counts;
        Calls { unkept: unkept + state.open.len() as u64, ..state.counts }
    }

    /// Starts a call. Writes into its headers which calls it must follow, for the far end. Returns the answer
    /// if the near end gives one.
    pub(super) fn enter(&self, parts: &mut Parts) -> Option<Promise> {
        // Remove these headers if the program sent them: the far end would believe them.
        for name in [ANSWERED, AFTER] {
            parts.headers.remove(name);
        }
        let message = self.answers.to(parts);
        let mut state = lock(&self.state);
        state.counts.calls += 1;
        let after: Vec<String> = state.open.iter().map(u64::to_string).collect();
        if !after.is_empty() {
            insert(&mut parts.headers, AFTER, &after.join(","));
        }
        let (message, number) = (message?, state.next);
        state.next += 1;
        insert(&mut parts.headers, ANSWERED, &number.to_string());
        let (method, kind) = (parts.uri.path().to_owned(), parts.headers.get(header::CONTENT_TYPE).cloned());
        Some(Promise { number, message, method, kind })
    }

    /// Answers a call whose request has arrived, and then waits for the server's own answer.
    pub(super) async fn keep(&self, promise: Promise, mut to: SendResponse<Bytes>, server: ResponseFuture) {
        {
            let mut state = lock(&self.state);
            state.counts.answered += 1;
            state.open.insert(promise.number);
        }
        // Ignore an error: the program may be gone, but the server must still get the call.
        let _ = answer(&promise, &mut to);
        drop(to);
        let outcome = read_answer(server).await;
        let first = {
            let mut state = lock(&self.state);
            state.open.remove(&promise.number);
            state.counts.unkept += u64::from(outcome.is_err());
            state.counts.unkept == 1
        };
        if let (Err(why), true) = (outcome, first) {
            let why = plain(&why, MAX_REASON);
            let what = format!("{} was answered with success, but the server {why}", promise.method);
            self.events.tell(Event::Note { what }).await;
        }
    }
}

fn insert(headers: &mut HeaderMap, name: &'static str, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

/// Sends the answer's message and the status for success.
fn answer(promise: &Promise, to: &mut SendResponse<Bytes>) -> Result<(), h2::Error> {
    let mut head = Response::new(());
    if let Some(kind) = &promise.kind {
        head.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    }
    let mut body = to.send_response(head, false)?;
    body.send_data(promise.message.clone(), false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert(STATUS, HeaderValue::from_static("0"));
    body.send_trailers(trailers)
}

/// Reads the server's own answer to its end.
///
/// # Errors
/// A text about the server's answer, if the answer is not success.
async fn read_answer(server: ResponseFuture) -> Result<(), String> {
    let broke = |error: h2::Error| format!("broke the call off: {error}");
    let response = server.await.map_err(broke)?;
    let (head, mut body) = response.into_parts();
    while let Some(data) = body.data().await {
        let length = data.map_err(broke)?.len();
        // Ignore an error: the stream has ended, so its sender needs no room.
        let _ = body.flow_control().release_capacity(length);
    }
    let trailers = body.trailers().await.map_err(broke)?.unwrap_or_default();
    let text = |name| {
        let value = trailers.get(name).or_else(|| head.headers.get(name));
        value.and_then(|value| value.to_str().ok()).unwrap_or_default()
    };
    match text(STATUS) {
        "0" => Ok(()),
        "" => Err(format!("answered with HTTP status {} and no gRPC status", head.status.as_u16())),
        status => Err(format!("answered with gRPC status {status}: {}", text(MESSAGE))),
    }
}
