//! Accepts links. The handshake consists of those of TLS and HTTP/2, and the first call.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use thalweg_sockets::door::{self, Door, Doorkeeper};
use thalweg_sockets::socket::Socket;
use thalweg_sockets::tls;
use thalweg_transport::{
    Address, Error, ErrorKind, Link, Options, Peer, Pending, Result, Standing, UnauthenticatedPeer,
};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, Mutex};
use tokio_rustls::TlsAcceptor;

use crate::connection::{drive, MAX_FRAME, MAX_HEADERS, SEND_BUFFER};
use crate::link::GrpcLink;
use crate::receive::Inbox;
use crate::service::Service;
use crate::shared::LinkState;
use crate::wire::{Duplex, Wire};
use crate::{unary, WINDOW};

const ACCEPT: &str = "accept";
/// Maximum number of calls at a time on one connection. All calls but the link's own are short: they are
/// unary, or are refused.
const MAX_CALLS: u32 = 8;

pub(crate) async fn listen(address: &Address, options: &Options) -> Result<Door> {
    let tls = options.tls.as_ref().map(tls::server).transpose()?;
    let tls = tls.map(|config| {
        let mut config = Arc::unwrap_or_clone(config);
        config.alpn_protocols = vec![crate::connect::ALPN.to_vec()];
        Arc::new(config)
    });
    door::open(address, options, Handshaker { tls, options: options.clone() }).await
}

/// Does the handshake of each connection that the listener accepts.
struct Handshaker {
    tls: Option<Arc<ServerConfig>>,
    options: Options,
}

#[async_trait]
impl Doorkeeper for Handshaker {
    async fn admit(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        unauthenticated_peer: Option<UnauthenticatedPeer>,
    ) -> Result<Option<Pending>> {
        let link: Arc<dyn Link> = Arc::new(self.shake(stream, from, unauthenticated_peer).await?);
        Ok(Some(Box::pin(std::future::ready(Ok(link)))))
    }
}

impl Handshaker {
    async fn secure(&self, socket: Socket, from: SocketAddr) -> Result<(Box<dyn Duplex>, Peer)> {
        let address = from.to_string();
        let Some(config) = &self.tls else {
            return Ok((Box::new(socket), Peer { address, ..Peer::default() }));
        };
        let accepted = TlsAcceptor::from(config.clone()).accept(socket).await;
        let stream = accepted.map_err(|e| tls::explain(ACCEPT, from, &e))?.into();
        let peer = tls::peer(ACCEPT, address, &stream)?;
        Ok((Box::new(stream), peer))
    }

    async fn shake(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        unauthenticated_peer: Option<UnauthenticatedPeer>,
    ) -> Result<GrpcLink> {
        let socket = Socket::new(stream).map_err(|e| tls::explain(ACCEPT, from, &e))?;
        let (stream, peer) = self.secure(socket.clone(), from).await?;
        if let Some(unauthenticated_peer) = &unauthenticated_peer {
            unauthenticated_peer.progressed();
        }
        let (standing, unary) = (Standing::new(unauthenticated_peer), unary(&self.options)?);
        let shared = LinkState::new(peer.address.clone(), self.tls.is_some(), unary, standing);
        let (caller, mut call) = oneshot::channel();
        let service = Service::new(shared.clone(), caller);
        let answer = service_fn(move |request| {
            let service = service.clone();
            async move { Ok::<_, std::convert::Infallible>(service.answer(request).await) }
        });
        let wire = TokioIo::new(Wire::of_server(stream, shared.clone()));
        let mut connection = Box::pin(settings().serve_connection(wire, answer));
        let called = tokio::select! {
            biased;
            called = &mut call => called.unwrap_or_else(|_| Err(shared.closed(ACCEPT))),
            ended = &mut connection => Err(no_call(&shared, ended)),
        };
        if let Err(error) = &called {
            shared.refuse(&error.to_string());
        }
        let driven =
            drive(shared.clone(), socket.clone(), connection, |c| c.get_mut().as_mut().graceful_shutdown());
        tokio::spawn(driven);
        Ok(GrpcLink { peer, socket, inbox: Mutex::new(Inbox::new(called?, &shared)), shared })
    }
}

fn settings() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEADERS)
        .max_concurrent_streams(MAX_CALLS);
    builder
}

/// The error for a connection that has ended before the peer called.
fn no_call(shared: &LinkState, ended: hyper::Result<()>) -> Error {
    if let Some(fault) = shared.fault() {
        return fault;
    }
    let context = |what: &dyn std::fmt::Display| format!("{} {what}", shared.who);
    match ended {
        Err(error) if !crate::connect::is_cut(&error) => {
            let text = context(&format_args!("does not speak HTTP/2 as gRPC does ({error})"));
            Error::new(ErrorKind::Corrupt, ACCEPT, text).hint("check the address and the port")
        }
        _ => Error::closed(ACCEPT, context(&"left before its first call")),
    }
}
