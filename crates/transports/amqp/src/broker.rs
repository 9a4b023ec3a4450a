//! One connection to the broker: opens and closes it, and follows its events (alarms and errors).

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt;
use lapin::types::{FieldTable, ShortString};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties, Event};
use thalweg_sockets::dial::in_time;
use thalweg_sockets::socket::Socket;
use thalweg_transport::{Address, Error, ErrorKind, Login, Options, Result};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::ending::Ending;
use crate::explain::explain;
use crate::stream::{kit, Wire};
use crate::{CLOSING, FRAME_MAX, HEARTBEAT_SECONDS};

const CONNECT: &str = "connect";

/// A connection to the broker. Dropping it ends it.
pub(crate) struct Broker {
    pub place: Address,
    connection: Connection,
    socket: Socket,
    /// The reason of the broker's alarm, while it accepts no messages.
    alarm: watch::Receiver<Option<String>>,
}

impl Broker {
    /// Connects and logs in. If the connection ends, that sets `ending`. `what` becomes part of its name at
    /// the broker.
    ///
    /// # Errors
    /// The same as `Post::open`.
    pub(crate) async fn open(
        place: &Address,
        options: &Options,
        vhost: &str,
        what: &str,
        ending: &Arc<Ending>,
    ) -> Result<Self> {
        let login = options.login.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Security, CONNECT, format!("{place}: a broker wants to know who one is"))
                .hint("set security.login_file to a file with one line user:password")
        })?;
        in_time(place, options, Self::log_in(place, options, uri(place, login, vhost), what, ending)).await
    }

    async fn log_in(
        place: &Address,
        options: &Options,
        uri: AMQPUri,
        what: &str,
        ending: &Arc<Ending>,
    ) -> Result<Self> {
        let (wire, socket) = Wire::open(place, options).await?;
        let guard = ShutOnDrop(Some(socket.clone()));
        let wire = Mutex::new(Some(wire));
        let name = format!("thalweg {what}");
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let connected = Connection::connector(
            uri,
            kit(),
            async move |_, _| {
                let wire = wire.lock().unwrap_or_else(PoisonError::into_inner).take();
                let again = || std::io::Error::from(std::io::ErrorKind::ConnectionAborted);
                Ok(AsyncTcpStream::Plain(wire.ok_or_else(again)?))
            },
            properties,
        );
        let connection = connected.await.map_err(|e| explain(CONNECT, place, &e))?;
        let alarm = listen(&connection, place.clone(), ending.clone());
        guard.keep();
        Ok(Self { place: place.clone(), connection, socket, alarm })
    }

    /// Opens a channel on this connection.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the connection has ended.
    pub(crate) async fn channel(&self) -> Result<Channel> {
        self.connection.create_channel().await.map_err(|e| explain("open a channel", &self.place, &e))
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The reason of the broker's alarm; `None` if it accepts messages.
    pub(crate) fn alarm(&self) -> Option<String> {
        self.alarm.borrow().clone()
    }

    /// Closes the connection. Waits at most [`CLOSING`] for the broker's answer.
    pub(crate) async fn close(&self) {
        let closing = self.connection.close(200, ShortString::from("done"));
        // During an alarm the broker reads nothing from this connection. Then the socket is shut without an
        // answer.
        let _ = timeout(CLOSING, closing).await;
        self.socket.shut();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.socket.shut();
    }
}

/// Shuts the socket if the handshake is cancelled: lapin's thread lives as long as its connection.
struct ShutOnDrop(Option<Socket>);

impl ShutOnDrop {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for ShutOnDrop {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            socket.shut();
        }
    }
}

/// The settings of a connection, in the form that lapin wants.
fn uri(place: &Address, login: &Login, vhost: &str) -> AMQPUri {
    let userinfo = AMQPUserInfo { username: login.user.clone(), password: login.password.clone() };
    let query = AMQPQueryString {
        frame_max: Some(FRAME_MAX),
        heartbeat: Some(HEARTBEAT_SECONDS),
        ..AMQPQueryString::default()
    };
    AMQPUri {
        scheme: AMQPScheme::AMQP, // stream.rs does TLS
        authority: AMQPAuthority { userinfo, host: place.host.clone(), port: place.port.unwrap_or(0) },
        vhost: vhost.into(),
        query,
    }
}

/// Starts a task that follows the events of a connection, for as long as the connection lives. Returns the
/// alarm's state.
fn listen(connection: &Connection, place: Address, ending: Arc<Ending>) -> watch::Receiver<Option<String>> {
    let (tell, alarm) = watch::channel(None);
    let mut events = Box::pin(connection.events_listener());
    tokio::spawn(async move {
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = tell.closed() => None,
            };
            match event {
                Some(Event::ConnectionBlocked(why)) => {
                    let _ = tell.send(Some(why));
                }
                Some(Event::ConnectionUnblocked) => {
                    let _ = tell.send(None);
                }
                // carrier.rs asks whether there is a listener; this error is the answer that there is.
                Some(Event::Error(error)) if is_locked(&error) => {}
                Some(Event::Error(error)) => ending.set(explain("carry", &place, &error)),
                Some(_) => {}
                None => return,
            }
        }
    });
    alarm
}

/// Whether the broker says that another connection owns a queue.
pub(crate) fn is_locked(error: &lapin::Error) -> bool {
    const RESOURCE_LOCKED: u16 = 405;
    matches!(error.kind(), lapin::ErrorKind::ProtocolError(reply) if reply.get_id() == RESOURCE_LOCKED)
}

/// No further arguments for RabbitMQ.
pub(crate) fn no_arguments() -> FieldTable {
    FieldTable::default()
}
