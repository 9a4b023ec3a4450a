//! Connects: one kernel connection for each stream, all with the same link id. If chunks go on [data
//! connections](mod@crate::data), there is one more, for control messages.

use std::sync::Arc;

use futures_util::future::try_join_all;
use rustls::pki_types::ServerName;
use rustls::ClientConfig;
use thalweg_sockets::dial::{in_time, open, reach};
use thalweg_sockets::socket::Socket;
use thalweg_sockets::tls;
use thalweg_transport::{Address, Error, ErrorKind, Options, Peer, Result};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::data::{self, DataKey};
use crate::line::{HoledStream, Wire};
use crate::link::{Duplex, End, Shaken, TcpLink};
use crate::preamble::{new_id, Preamble};

const CONNECT: &str = "connect";

type ClientTls = Option<(Arc<ClientConfig>, ServerName<'static>)>;

pub(crate) async fn connect(address: &Address, options: &Options) -> Result<TcpLink> {
    let tls = options.tls.as_ref().map(|tls| tls::client(address, tls)).transpose()?;
    in_time(address, options, gather(address, options, &tls)).await
}

async fn gather(address: &Address, options: &Options, tls: &ClientTls) -> Result<TcpLink> {
    let id = new_id()?;
    let data = tls.is_some() && options.sealed.is_some();
    let preamble = |stream, data| Preamble { id, stream, streams: options.streams, data };
    let (stream, to) = reach(address, options).await?;
    let (first, key) = shake(stream, address, tls, preamble(0, data)).await?;
    let more = |n: u8, key: Option<DataKey>| async move {
        let stream = open(to, options).await.map_err(|e| Error::io(CONNECT, address, &e))?;
        match key {
            None => shake(stream, address, tls, preamble(n, false)).await.map(|(shaken, _)| shaken),
            Some(key) => join(stream, address, preamble(n, true), &key).await,
        }
    };
    let has_data = key.is_some();
    let others = (u8::from(!has_data)..options.streams).map(|n| more(n, key.clone()));
    let mut connections = vec![first];
    connections.extend(try_join_all(others).await?);
    Ok(TcpLink::new(connections, has_data))
}

/// Does the handshake on a connection. If it returns a key, the link's chunks go on data connections.
async fn shake(
    stream: TcpStream,
    address: &Address,
    tls: &ClientTls,
    preamble: Preamble,
) -> Result<(Shaken, Option<DataKey>)> {
    let socket = Socket::new(stream).map_err(|e| no_answer(address, &e, tls.is_some()))?;
    shake_over(End::Kernel(socket.clone()), socket, address, tls, preamble).await
}

/// Does the handshake over `wire`, whose bytes `end` carries.
async fn shake_over(
    end: End,
    mut wire: impl Duplex + 'static,
    address: &Address,
    tls: &ClientTls,
    preamble: Preamble,
) -> Result<(Shaken, Option<DataKey>)> {
    let failed = |e: &std::io::Error| no_answer(address, e, tls.is_some());
    match tls {
        None => {
            exchange(&mut wire, preamble, failed).await?;
            Ok((Shaken { end, tls: None, peer: in_the_clear(address), unauthenticated_peer: None }, None))
        }
        Some((config, name)) => {
            let connector = TlsConnector::from(config.clone());
            let connected = connector.connect(name.clone(), wire).await;
            let mut stream = connected.map_err(|e| failed(&e))?.into();
            let peer = tls::peer(CONNECT, address.to_string(), &stream)?;
            if let (End::HoledStream(line), Some(secret)) = (&end, &peer.binding) {
                line.bound(secret);
            }
            let key = match exchange(&mut stream, preamble, failed).await?.data {
                true => Some(DataKey::of(CONNECT, &stream)?),
                false => None,
            };
            Ok((Shaken { end, tls: Some(Box::new(stream)), peer, unauthenticated_peer: None }, key))
        }
    }
}

/// Makes a link over a connection that the kernel does not carry. All its bytes go on this connection.
pub(crate) async fn over(
    line: Arc<dyn HoledStream>,
    address: &Address,
    options: &Options,
) -> Result<TcpLink> {
    let tls = options.tls.as_ref().map(|tls| tls::client(address, tls)).transpose()?;
    let preamble = Preamble { id: new_id()?, stream: 0, streams: 1, data: false };
    let (end, wire) = (End::HoledStream(line.clone()), Wire(line));
    let (shaken, _) = shake_over(end, wire, address, &tls, preamble).await?;
    Ok(TcpLink::new(vec![shaken], false))
}

/// Adds a data connection to its link.
async fn join(stream: TcpStream, address: &Address, preamble: Preamble, key: &DataKey) -> Result<Shaken> {
    let failed = |e: &std::io::Error| no_answer(address, e, true);
    let socket = Socket::new(stream).map_err(|e| failed(&e))?;
    data::ask(&mut socket.clone(), preamble, key, failed).await?;
    Ok(Shaken {
        end: End::Kernel(socket),
        tls: None,
        peer: in_the_clear(address),
        unauthenticated_peer: None,
    })
}

fn in_the_clear(address: &Address) -> Peer {
    Peer { address: address.to_string(), ..Peer::default() }
}

/// Sends the preamble, and waits for the answer, which may decline data connections. A server that refuses
/// our certificate says so only now, and may have closed the connection before we write. So a security error
/// in its answer is reported rather than our failed write.
async fn exchange(
    stream: &mut impl Duplex,
    preamble: Preamble,
    failed: impl Fn(&std::io::Error) -> Error,
) -> Result<Preamble> {
    let wrote = match stream.write_all(&preamble.encode()).await {
        Ok(()) => stream.flush().await,
        failed => failed,
    };
    let answer = Preamble::read(CONNECT, stream, &failed).await;
    let declined = Preamble { data: false, ..preamble };
    match (wrote, answer) {
        (Ok(()), Ok(answer)) if answer == preamble || answer == declined => Ok(answer),
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
    explained.hint(if tls {
        "try again; if it stays so, check that the server has tls set"
    } else {
        "try again; if it stays so, check that a thalweg server listens there"
    })
}
