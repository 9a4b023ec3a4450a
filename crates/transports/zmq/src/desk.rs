//! The work of a carrier besides messages: it follows the events of connections, and tells new members the
//! ports that they need.

use std::io;

use thalweg_messages::MemberId;
use thalweg_transport::{Error, ErrorKind};

use crate::carrier::ZmqCarrier;
use crate::ffi::MessagePart;
use crate::joining::{ports_text, PORT, SUBSCRIBED};
use crate::kernel;
use crate::monitor::Happened;
use crate::open::Watched;
use crate::peers::IN_A_ROW;
use crate::visitors::Place;

impl ZmqCarrier {
    /// Processes the events of connections.
    pub(crate) fn watch(&self) -> io::Result<()> {
        self.watch_one(&self.sockets.input, Place::Input)?;
        self.outputs().try_for_each(|output| self.watch_one(output, Place::Output))
    }

    /// Processes the events of the lines' connections.
    pub(crate) fn watch_lines(&self) -> io::Result<()> {
        let Some(lines) = &self.sockets.lines else { return Ok(()) };
        for (member, line) in lines.all() {
            while let Some(happened) = line.watched.monitor.next().ok().flatten() {
                match happened {
                    Happened::Connected(descriptor) => {
                        self.choose_congestion(descriptor);
                        self.visitors.connected(Place::Line(member), descriptor, line.watched.port);
                        // The member sends over another connection, so it may have been admitted before this
                        // event.
                        if lines.is_admitted(member) {
                            self.visitors.admit_line(member);
                        }
                        self.peers().wrote_to(member, Some(descriptor));
                    }
                    Happened::Ended(descriptor) => {
                        self.visitors.ended(Place::Line(member), descriptor);
                        lines.close(member);
                        let mut peers = self.peers();
                        peers.ended(descriptor, false);
                        peers.left(member);
                    }
                    Happened::Refused { keys } => self.refuse(keys),
                    Happened::Ready | Happened::Unreachable => {}
                }
            }
        }
        self.visitors.end_lines(|member| lines.is_open(member));
        Ok(())
    }

    fn choose_congestion(&self, descriptor: i32) {
        if let Some(congestion) = &self.sockets.congestion {
            kernel::set_congestion(descriptor, congestion);
        }
    }

    fn watch_one(&self, watched: &Watched, place: Place) -> io::Result<()> {
        while let Some(happened) = watched.monitor.next()? {
            if self.sockets.member.is_some() {
                if let Happened::Ended(_) = happened {
                    self.finish(&format!("the connection to {} has ended", self.sockets.address));
                }
                continue;
            }
            match happened {
                Happened::Connected(descriptor) => {
                    self.choose_congestion(descriptor);
                    self.visitors.connected(place, descriptor, watched.port);
                }
                Happened::Ended(descriptor) => {
                    self.visitors.ended(place, descriptor);
                    // Ignore this at the reception (see [`crate::lines`]): members disconnect from it once
                    // they know their ports.
                    if place == Place::Input || self.sockets.lines.is_none() {
                        self.peers().ended(descriptor, place == Place::Input);
                    }
                }
                Happened::Refused { keys } => self.refuse(keys),
                Happened::Ready | Happened::Unreachable => {}
            }
        }
        Ok(())
    }

    /// Reports a failed ZMTP handshake.
    fn refuse(&self, keys: bool) {
        let (kind, what) = if keys || (self.sockets.overhead > 0) {
            (ErrorKind::Security, "somebody did not have the key for CURVE that is expected")
        } else {
            (ErrorKind::Corrupt, "somebody does not speak ZMTP as we do")
        };
        let mut peers = self.peers();
        if peers.refused.len() < IN_A_ROW as usize {
            let error = Error::new(kind, "accept", format!("{}: {what}", self.sockets.address));
            peers.refused.push_back(error.hint("give both ends the files of the same `thalweg pki init`"));
        }
    }

    /// Answers each member that asks at the reception (the REP at the listener's address; see
    /// [`crate::lines`]) with the two ports for it. The answer is empty if the admission queue has no room.
    pub(crate) fn reception(&self) -> io::Result<()> {
        let (Some(lines), Some(reception)) = (&self.sockets.lines, &self.sockets.output) else {
            return Ok(());
        };
        while let Some(parts) = reception.socket.try_receive()? {
            // First process the events that precede this request.
            self.watch_one(reception, Place::Output)?;
            let request =
                parts.first().and_then(|part| Some((part.bytes().try_into().ok()?, part.source()?)));
            let ports = request.and_then(|(id, descriptor)| {
                self.visitors.progressed(Place::Output, descriptor);
                lines.ports(MemberId(id), self.visitors.origin(Place::Output, descriptor)).ok()
            });
            let text = ports.map(ports_text).unwrap_or_default();
            reception.socket.send(&mut [MessagePart::copy_of(&[&text])?])?;
        }
        Ok(())
    }

    /// Answers each subscription to a member's own topic with the second port.
    pub(crate) fn subscriptions(&self) -> io::Result<()> {
        let (None, None, Some(output)) = (self.sockets.member, &self.sockets.lines, &self.sockets.output)
        else {
            return Ok(());
        };
        while let Some(parts) = output.socket.try_receive()? {
            // First process the events that precede this subscription. An earlier connection may have had the
            // same descriptor, and its end must not count for this one.
            self.watch_one(output, Place::Output)?;
            let Some(part) = parts.first() else { continue };
            let Some((&SUBSCRIBED, topic)) = part.bytes().split_first() else { continue };
            let id: Option<[u8; 16]> = topic.strip_prefix(b"m").and_then(|id| id.try_into().ok());
            if let Some(id) = id {
                self.peers().wrote_to(MemberId(id), part.source());
                part.source()
                    .iter()
                    .for_each(|descriptor| self.visitors.progressed(Place::Output, *descriptor));
                let text = [PORT, self.sockets.port.to_string().as_bytes()].concat();
                output
                    .socket
                    .send(&mut [MessagePart::copy_of(&[topic])?, MessagePart::copy_of(&[&text])?])?;
            }
        }
        Ok(())
    }
}
