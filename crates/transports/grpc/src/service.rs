//! The service of `proto/thalweg.proto`, written by hand: its path, its codec, and the answers to its calls.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::stream::{Map, StreamExt};
use http::{header, Request, Response, StatusCode};
use hyper::body::Incoming;
use thalweg_transport::{Error, ErrorKind, Result};
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::server::StreamingService;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use crate::calls;
use crate::frame::Frame;
use crate::send::Messages;
use crate::shared::LinkState;
use crate::MAX_MESSAGE;

/// Path of the method.
pub(crate) const EXCHANGE: &str = "/thalweg.v1.Link/Exchange";

/// A header of the first call: the client sends and receives updates by unary calls (modes unary and push).
pub(crate) const UNARY: &str = "thalweg-unary";
pub(crate) const ALIKE: &str = "set transport.options.mode alike at both ends";

pub(crate) fn mode(unary: bool) -> &'static str {
    if unary {
        "unary"
    } else {
        "stream"
    }
}

pub(crate) type Codec = ProstCodec<Frame, Frame>;

/// The waiter for the first call of a connection.
type Caller = oneshot::Sender<Result<Streaming<Frame>>>;

/// Answers the calls of one connection. The first call is its link.
#[derive(Clone)]
pub(crate) struct Service {
    shared: Arc<LinkState>,
    caller: Arc<Mutex<Option<Caller>>>,
}

impl Service {
    pub(crate) fn new(shared: Arc<LinkState>, caller: Caller) -> Self {
        Self { shared, caller: Arc::new(Mutex::new(Some(caller))) }
    }

    fn caller(&self) -> Option<Caller> {
        self.caller.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        let kind = request.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes());
        if !kind.is_some_and(|kind| kind.starts_with(b"application/grpc")) {
            self.refuse("sent a request that is not gRPC".into());
            let mut answer = Response::new(Body::empty());
            *answer.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE; // as gRPC over HTTP/2 requires
            return answer;
        }
        if request.uri().path() != EXCHANGE {
            if self.has_link() {
                let answer = calls::answer(&self.shared, request).await;
                return answer
                    .unwrap_or_else(|| Status::unimplemented("this server has no such call").into_http());
            }
            self.refuse(format!("called {:?}, which this server does not have", request.uri().path()));
            return Status::unimplemented(format!("this server has {EXCHANGE}")).into_http();
        }
        let Some(caller) = self.caller() else {
            return Status::resource_exhausted("a connection carries one link").into_http();
        };
        let (wants_unary, ours) = (request.headers().contains_key(UNARY), self.shared.unary.is_some());
        if wants_unary != ours {
            let (theirs, ours) = (mode(wants_unary), mode(ours));
            let context = format!("{} asks for mode {theirs}; this server has {ours}", self.shared.who);
            let error = Error::new(ErrorKind::Unsupported, "accept", context);
            let _ = caller.send(Err(error.hint(ALIKE)));
            return Status::failed_precondition(format!("the server has mode {ours}, not {theirs}"))
                .into_http();
        }
        let exchange = Exchange { shared: self.shared, caller: Some(caller) };
        tonic::server::Grpc::new(Codec::default())
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE)
            .streaming(exchange, request)
            .await
    }

    /// Whether the first call has arrived.
    fn has_link(&self) -> bool {
        self.caller.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Ends the handshake, if it is not over yet.
    fn refuse(&self, what: String) {
        if let Some(caller) = self.caller() {
            let context = format!("{} {what}", self.shared.who);
            let error = Error::new(ErrorKind::Corrupt, "accept", context);
            // This fails if nobody waits for the link any more.
            let _ = caller.send(Err(error.hint("check the address and the port")));
        }
    }
}

/// The one call that is the link.
struct Exchange {
    shared: Arc<LinkState>,
    caller: Option<Caller>,
}

type Answers = Map<Messages, fn(Frame) -> std::result::Result<Frame, Status>>;

impl StreamingService<Frame> for Exchange {
    type Response = Frame;
    type ResponseStream = Answers;
    type Future = std::future::Ready<std::result::Result<tonic::Response<Answers>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<Frame>>) -> Self::Future {
        let taken = self.caller.take().is_some_and(|caller| caller.send(Ok(request.into_inner())).is_ok());
        let answers = Messages::new(self.shared.clone()).map(Ok as fn(Frame) -> _);
        std::future::ready(if taken {
            Ok(tonic::Response::new(answers))
        } else {
            Err(Status::unavailable("the listener has ended"))
        })
    }
}
