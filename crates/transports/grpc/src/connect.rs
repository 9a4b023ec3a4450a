//! Connects: makes the HTTP/2 connection and the one call that serves as the link.

use std::error::Error as _;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::FutureExt;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use rustls::ClientConfig;
use thalweg_sockets::dial::{in_time, reach};
use thalweg_sockets::socket::Socket;
use thalweg_sockets::tls;
use thalweg_transport::{Address, Error, ErrorKind, Options, Peer, Result, Standing};
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tonic::body::Body;
use tonic::Status;

use crate::connection::{drive, MAX_FRAME, MAX_HEADERS, SEND_BUFFER};
use crate::link::GrpcLink;
use crate::receive::{explain, Inbox};
use crate::send::Messages;
use crate::service::{Codec, ALIKE, EXCHANGE, UNARY};
use crate::shared::LinkState;
use crate::wire::{Duplex, Wire};
use crate::{calls, unary, MAX_MESSAGE, WINDOW};

const CONNECT: &str = "connect";
/// HTTP/2's name in a TLS handshake (RFC 9113, section 3.2). Other gRPC implementations require it.
pub(crate) const ALPN: &[u8] = b"h2";

type ClientTls = Option<(Arc<ClientConfig>, ServerName<'static>)>;

pub(crate) async fn connect(address: &Address, options: &Options) -> Result<GrpcLink> {
    let tls = options.tls.as_ref().map(|tls| tls::client(address, tls)).transpose()?;
    let tls = tls.map(|(config, name)| {
        let mut config = Arc::unwrap_or_clone(config);
        config.alpn_protocols = vec![ALPN.to_vec()];
        (Arc::new(config), name)
    });
    in_time(address, options, call(address, options, &tls)).await
}

async fn secure(socket: Socket, address: &Address, tls: &ClientTls) -> Result<(Box<dyn Duplex>, Peer)> {
    let Some((config, name)) = tls else {
        return Ok((Box::new(socket), Peer { address: address.to_string(), ..Peer::default() }));
    };
    let connected = TlsConnector::from(config.clone()).connect(name.clone(), socket).await;
    let stream = connected.map_err(|e| no_answer(tls::explain(CONNECT, address, &e), true))?.into();
    let peer = tls::peer(CONNECT, address.to_string(), &stream)?;
    Ok((Box::new(stream), peer))
}

async fn call(address: &Address, options: &Options, tls: &ClientTls) -> Result<GrpcLink> {
    let (stream, _) = reach(address, options).await?;
    let socket = Socket::new(stream).map_err(|e| Error::io(CONNECT, address, &e))?;
    let (stream, peer) = secure(socket.clone(), address, tls).await?;
    let shared = LinkState::new(address.to_string(), tls.is_some(), unary(options)?, Standing::new([]));
    let ending = EndOnDrop(Some(shared.clone()));
    let wire = TokioIo::new(Wire::of_client(stream, shared.clone()));
    let failed = |error: &dyn Fn() -> Error| no_answer(shared.fault().unwrap_or_else(error), tls.is_some());
    let (sender, connection) = settings()
        .handshake(wire)
        .await
        .map_err(|e| failed(&|| Error::closed(CONNECT, format!("{address}: {e}"))))?;
    let origin = origin(address, tls.is_some())?;
    let mut calling = tonic::client::Grpc::with_origin(Sender(sender.clone()), origin.clone())
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let kept = sender.clone();
    let driven = drive(shared.clone(), socket.clone(), connection, move |_| drop(kept));
    tokio::spawn(driven);
    let messages = Messages::new(shared.clone());
    let path = http::uri::PathAndQuery::from_static(EXCHANGE);
    let mut request = tonic::Request::new(messages);
    if shared.unary.is_some() {
        request.metadata_mut().insert(UNARY, tonic::metadata::MetadataValue::from_static("1"));
    }
    let answer = calling.streaming(request, path, Codec::default()).await;
    let answer = answer.map_err(|status| failed(&|| refused(&shared, &status)))?;
    ending.keep();
    if shared.unary.is_some() {
        calls::start(&shared, &sender, &origin);
    }
    Ok(GrpcLink { peer, socket, inbox: Mutex::new(Inbox::new(answer.into_inner(), &shared)), shared })
}

/// Ends the connection's task if connecting fails.
struct EndOnDrop(Option<Arc<LinkState>>);

impl EndOnDrop {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.refuse("the link was not established");
        }
    }
}

fn settings() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEADERS);
    builder
}

fn origin(address: &Address, tls: bool) -> Result<Uri> {
    let scheme = if tls { "https" } else { "http" };
    let uri = format!("{scheme}://{}", address.authority()).parse();
    uri.map_err(|e| Error::new(ErrorKind::Address, CONNECT, format!("{address}: {e}")))
}

/// The error for a server whose answer is not a link.
fn refused(shared: &LinkState, status: &Status) -> Error {
    let error = explain(shared, status);
    if status.code() == tonic::Code::FailedPrecondition {
        let context = format!("{}: {}", shared.who, status.message());
        return Error::new(ErrorKind::Unsupported, CONNECT, context).hint(ALIKE);
    }
    match error.kind() {
        ErrorKind::Corrupt => {
            let context = format!("{} is not a thalweg grpc server ({})", shared.who, status.message());
            Error::new(ErrorKind::Corrupt, CONNECT, context).hint("check the address and the port")
        }
        _ => Error::closed(CONNECT, format!("{} hung up ({})", shared.who, status.message())),
    }
}

fn no_answer(error: Error, tls: bool) -> Error {
    if error.kind() != ErrorKind::Closed {
        return error;
    }
    error.hint(if tls {
        "try again; if it stays so, check that the server has tls set"
    } else {
        "try again; if it stays so, check that a thalweg server listens there"
    })
}

/// Whether the network or the peer has cut the connection. False if the peer broke the rules of HTTP/2.
pub(crate) fn is_cut(error: &hyper::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<h2::Error>() {
            return found.is_io() || found.is_remote();
        }
        if error.is::<std::io::Error>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// A connection in the form that tonic needs.
struct Sender(http2::SendRequest<Body>);

impl tower_service::Service<Request<Body>> for Sender {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, hyper::Result<Self::Response>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.0.send_request(request).boxed()
    }
}
