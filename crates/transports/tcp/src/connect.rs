//! Connecting: one kernel connection for each stream, all with the same link's name.

use std::sync::Arc;

use futures_util::future::try_join_all;
use rustls::pki_types::ServerName;
use rustls::ClientConfig;
use thalweg_transport::{Address, Error, ErrorKind, Options, Peer, Result};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::dial::{in_time, open, reach};
use crate::link::{Duplex, End, Shaken, TcpLink};
use crate::preamble::{new_id, Preamble};
use crate::socket::Socket;
use crate::tls;

const CONNECT: &str = "connect";

type ClientTls = Option<(Arc<ClientConfig>, ServerName<'static>)>;

pub(crate) async fn connect(address: &Address, options: &Options) -> Result<TcpLink> {
    let tls = options.tls.as_ref().map(|tls| tls::client(address, tls)).transpose()?;
    in_time(address, options, gather(address, options, &tls)).await
}

async fn gather(address: &Address, options: &Options, tls: &ClientTls) -> Result<TcpLink> {
    let id = new_id()?;
    let preamble = |stream| Preamble { id, stream, streams: options.streams };
    let (stream, to) = reach(address, options).await?;
    let mut connections = vec![shake(stream, address, tls, preamble(0)).await?];
    let more = (1..options.streams).map(|n| async move {
        let stream = open(to, options).await.map_err(|e| Error::io(CONNECT, address, &e))?;
        shake(stream, address, tls, Preamble { id, stream: n, streams: options.streams }).await
    });
    connections.extend(try_join_all(more).await?);
    Ok(TcpLink::new(connections))
}

async fn shake(stream: TcpStream, address: &Address, tls: &ClientTls, preamble: Preamble) -> Result<Shaken> {
    let failed = |e: &std::io::Error| no_answer(address, e, tls.is_some());
    let socket = Socket::new(stream).map_err(|e| failed(&e))?;
    let end = End::Kernel(socket.clone());
    match tls {
        None => {
            exchange(&mut socket.clone(), preamble, failed).await?;
            let peer = Peer { address: address.to_string(), ..Peer::default() };
            Ok(Shaken { end, tls: None, peer })
        }
        Some((config, name)) => {
            let connector = TlsConnector::from(config.clone());
            let connected = connector.connect(name.clone(), socket).await;
            let mut stream = connected.map_err(|e| failed(&e))?.into();
            let peer = tls::peer(CONNECT, address.to_string(), &stream)?;
            exchange(&mut stream, preamble, failed).await?;
            Ok(Shaken { end, tls: Some(Box::new(stream)), peer })
        }
    }
}

/// Says which connection this is and waits for the answer. A server that refuses our certificate says so
/// only now, and may have closed before we write: its reason counts, not our failed write.
async fn exchange(
    stream: &mut impl Duplex,
    preamble: Preamble,
    failed: impl Fn(&std::io::Error) -> Error,
) -> Result<()> {
    let wrote = match stream.write_all(&preamble.encode()).await {
        Ok(()) => stream.flush().await,
        failed => failed,
    };
    let answer = Preamble::read(CONNECT, stream, &failed).await;
    match (wrote, answer) {
        (Ok(()), Ok(answer)) if answer == preamble => Ok(()),
        (Ok(()), Ok(_)) => {
            Err(Error::new(ErrorKind::Corrupt, CONNECT, "the server answered for another link"))
        }
        (Err(_), Err(answer)) if answer.kind() == ErrorKind::Security => Err(answer),
        (Err(error), _) => Err(failed(&error)),
        (_, Err(answer)) => Err(answer),
    }
}

fn no_answer(address: &Address, error: &std::io::Error, tls: bool) -> Error {
    let explained = tls::explain(CONNECT, address, error);
    if explained.kind() != ErrorKind::Closed {
        return explained;
    }
    explained.mend(if tls {
        "try again; if it stays so, check that the server has tls set"
    } else {
        "try again; if it stays so, check that a thalweg server listens there"
    })
}
