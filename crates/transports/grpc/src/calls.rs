//! The unary calls of a link: the client's tasks that make the calls, and the server's answers.

use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::FutureExt;
use http::uri::PathAndQuery;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use tonic::body::Body;
use tonic::server::UnaryService;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use crate::body::{Pieces, Stop, Watched};
use crate::parcel::{Parcel, Sealed, Taken, Want};
use crate::receive::explain;
use crate::shared::LinkState;
use crate::unary::{refused, Outbound, Unary};

/// Paths of the methods.
pub(crate) const PUT: &str = "/thalweg.v1.Link/Put";
pub(crate) const GET: &str = "/thalweg.v1.Link/Get";

type Answered<T> = std::result::Result<tonic::Response<T>, Status>;

/// Starts the tasks that make a client's calls until the link ends.
pub(crate) fn start(shared: &Arc<LinkState>, sender: &SendRequest<Body>, origin: &Uri) {
    tokio::spawn(until_ended(shared.clone(), put_all(shared.clone(), sender.clone(), origin.clone())));
    tokio::spawn(until_ended(shared.clone(), get_all(shared.clone(), sender.clone(), origin.clone())));
}

async fn until_ended(shared: Arc<LinkState>, work: impl std::future::Future<Output = ()>) {
    tokio::select! {
        biased;
        () = shared.ended() => {}
        () = work => {}
    }
}

/// Sends each outbound update with a call of `Put`.
async fn put_all(shared: Arc<LinkState>, sender: SendRequest<Body>, origin: Uri) {
    let Some(unary) = &shared.unary else { return };
    while let Some(outbound) = unary.outbounds.lock().await.recv().await {
        let Outbound { message, stop, taken } = outbound;
        if stop.is_stopped() {
            continue;
        }
        let mut calling = caller(&shared, &sender, &origin, stop.clone(), unary);
        let put = calling.unary(
            tonic::Request::new(message),
            PathAndQuery::from_static(PUT),
            Sealed::<Taken>::default(),
        );
        tokio::select! {
            biased;
            () = stop.stopped() => {}
            answer = put => {
                let outcome = answer.map(drop).map_err(|status| match status.code() {
                    Code::OutOfRange => refused(&shared),
                    _ => explain(&shared, &status),
                });
                let _ = taken.send(outcome); // fails if the sender no longer waits
            }
        }
    }
}

/// Calls `Get` for one update after the other. The server answers when it has an update.
async fn get_all(shared: Arc<LinkState>, sender: SendRequest<Body>, origin: Uri) {
    let Some(unary) = &shared.unary else { return };
    let mut got = false;
    loop {
        let mut calling = caller(&shared, &sender, &origin, Stop::default(), unary);
        let codec = ProstCodec::<Want, Parcel>::default();
        let request = tonic::Request::new(Want { got });
        got = match calling.unary(request, PathAndQuery::from_static(GET), codec).await {
            Ok(answer) => unary.deliver(answer.into_inner()).await.is_ok(),
            Err(status) if status.code() == Code::Unimplemented => {
                return shared.end("the server does not answer unary calls");
            }
            // The server has stopped the message, or it is larger than this end allows. The next call tells
            // the server that the update was not taken.
            Err(_) => false,
        };
    }
}

/// A connection in the form that tonic needs for one unary call.
struct Sender {
    requests: SendRequest<Body>,
    shared: Arc<LinkState>,
    stop: Stop,
}

fn caller(
    shared: &Arc<LinkState>,
    requests: &SendRequest<Body>,
    origin: &Uri,
    stop: Stop,
    unary: &Unary,
) -> tonic::client::Grpc<Sender> {
    let sender = Sender { requests: requests.clone(), shared: shared.clone(), stop };
    tonic::client::Grpc::with_origin(sender, origin.clone())
        .max_decoding_message_size(unary.largest)
        .max_encoding_message_size(unary.largest)
}

impl tower_service::Service<Request<Body>> for Sender {
    type Response = Response<Watched>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, hyper::Result<Self::Response>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.requests.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (stop, shared) = (self.stop.clone(), self.shared.clone());
        let answer = self.requests.send_request(request.map(|body| Pieces::of(body, stop)));
        async move { Ok(answer.await?.map(|body| Watched::new(body, shared))) }.boxed()
    }
}

/// The server's answer to a unary call. `None` if there is no such method.
pub(crate) async fn answer(shared: &Arc<LinkState>, request: Request<Incoming>) -> Option<Response<Body>> {
    let unary = shared.unary.as_ref()?;
    match request.uri().path() {
        PUT => {
            let _one_at_a_time = unary.putting.lock().await;
            let counted = request.map(|body| Watched::new(body, shared.clone()));
            let mut answering = tonic::server::Grpc::new(ProstCodec::<Taken, Parcel>::default())
                .max_decoding_message_size(unary.largest);
            Some(answering.unary(Put(shared.clone()), counted).await)
        }
        GET => {
            let stop = Arc::new(OnceLock::new());
            let mut answering =
                tonic::server::Grpc::new(Sealed::<Want>::default()).max_encoding_message_size(unary.largest);
            let get = Get { shared: shared.clone(), stop: stop.clone() };
            let answer = answering.unary(get, request).await;
            let stop = stop.get().cloned().unwrap_or_default();
            Some(answer.map(|body| Pieces::of(body, stop)))
        }
        _ => None,
    }
}

fn link_ended() -> Status {
    Status::unavailable("the link has ended")
}

/// Receives a client's update.
struct Put(Arc<LinkState>);

impl UnaryService<Parcel> for Put {
    type Response = Taken;
    type Future = BoxFuture<'static, Answered<Taken>>;

    fn call(&mut self, request: tonic::Request<Parcel>) -> Self::Future {
        let shared = self.0.clone();
        async move {
            let unary = shared.unary.as_ref().ok_or_else(link_ended)?;
            tokio::select! {
                biased;
                taken = unary.deliver(request.into_inner()) => taken.map_err(|()| link_ended())?,
                () = shared.ended() => return Err(link_ended()),
            }
            Ok(tonic::Response::new(Taken {}))
        }
        .boxed()
    }
}

/// Gives a client the next update, when there is one.
struct Get {
    shared: Arc<LinkState>,
    stop: Arc<OnceLock<Stop>>,
}

impl UnaryService<Want> for Get {
    type Response = Bytes;
    type Future = BoxFuture<'static, Answered<Bytes>>;

    fn call(&mut self, request: tonic::Request<Want>) -> Self::Future {
        let (shared, stop) = (self.shared.clone(), self.stop.clone());
        async move {
            let unary = shared.unary.as_ref().ok_or_else(link_ended)?;
            tell(unary, request.into_inner().got);
            let mut outbounds = tokio::select! {
                biased;
                () = shared.ended() => return Err(link_ended()),
                outbounds = unary.outbounds.lock() => outbounds,
            };
            loop {
                let next = tokio::select! {
                    biased;
                    () = shared.ended() => return Err(link_ended()),
                    next = outbounds.recv() => next.ok_or_else(link_ended)?,
                };
                if !next.stop.is_stopped() {
                    *unary.given.lock().unwrap_or_else(PoisonError::into_inner) = Some(next.taken);
                    let _ = stop.set(next.stop); // nobody has set it before
                    return Ok(tonic::Response::new(next.message));
                }
            }
        }
        .boxed()
    }
}

/// Tells the sender of the previous update whether the client has taken it.
fn tell(unary: &Unary, got: bool) {
    let given = unary.given.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(taken) = given.filter(|_| got) {
        let _ = taken.send(Ok(())); // fails if the sender no longer waits
    }
}
