//! The listener: it does the handshake of each connection, and gives the connection to the gathering that
//! makes links.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustls::ServerConfig;
use thalweg_sockets::door::{self, Door, Doorkeeper};
use thalweg_sockets::socket::Socket;
use thalweg_sockets::tls;
use thalweg_transport::{Address, Error, Options, Peer, Pending, Result, UnauthenticatedPeer};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::gather::Gathering;
use crate::link::{Duplex, End, Shaken};
use crate::preamble::Preamble;

const ACCEPT: &str = "accept";

pub(crate) async fn listen(address: &Address, options: &Options) -> Result<Door> {
    let tls = options.tls.as_ref().map(tls::server).transpose()?;
    let keeper = Keeper { tls, limit: options.connect_timeout(), gathering: Gathering::default() };
    door::open(address, options, keeper).await
}

struct Keeper {
    tls: Option<Arc<ServerConfig>>,
    limit: Duration,
    gathering: Gathering,
}

#[async_trait]
impl Doorkeeper for Keeper {
    async fn admit(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        unauthenticated_peer: Option<UnauthenticatedPeer>,
    ) -> Result<Option<Pending>> {
        let (preamble, shaken) = self.shake(stream, from, unauthenticated_peer).await?;
        self.gathering.add(preamble, shaken, self.limit)
    }
}

impl Keeper {
    async fn shake(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        unauthenticated_peer: Option<UnauthenticatedPeer>,
    ) -> Result<(Preamble, Shaken)> {
        let failed = |e: &std::io::Error| tls::explain(ACCEPT, from, e);
        let socket = Socket::new(stream).map_err(|e| failed(&e))?;
        let end = End::Kernel(socket.clone());
        match &self.tls {
            None => {
                let preamble = answer(&mut socket.clone(), failed).await?;
                let peer = Peer { address: from.to_string(), ..Peer::default() };
                Ok((preamble, Shaken { end, tls: None, peer, unauthenticated_peer }))
            }
            Some(config) => {
                let accepted = TlsAcceptor::from(config.clone()).accept(socket).await;
                let mut stream = accepted.map_err(|e| failed(&e))?.into();
                let peer = tls::peer(ACCEPT, from.to_string(), &stream)?;
                let preamble = answer(&mut stream, failed).await?;
                Ok((preamble, Shaken { end, tls: Some(Box::new(stream)), peer, unauthenticated_peer }))
            }
        }
    }
}

/// Reads the preamble of a connection and accepts it. Connections of the kernel lose nothing, so chunks can
/// go on all of them, under TLS: data connections are declined.
async fn answer(stream: &mut impl Duplex, failed: impl Fn(&std::io::Error) -> Error) -> Result<Preamble> {
    let preamble = Preamble::read(ACCEPT, stream, &failed).await?;
    let taken = Preamble { data: false, ..preamble };
    reply(stream, taken).await.map_err(|e| failed(&e))?;
    Ok(taken)
}

/// Answers the preamble of a connection with what was accepted.
pub(crate) async fn reply(stream: &mut impl Duplex, taken: Preamble) -> std::io::Result<()> {
    stream.write_all(&taken.encode()).await?;
    stream.flush().await
}
