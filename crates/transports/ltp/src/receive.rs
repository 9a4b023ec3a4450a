//! What has come, as acknowledgements say it.

use std::time::Instant;

use thalweg_proto::ltp::{Receiver, Rule};
use thalweg_udp::datagram::Key;
use thalweg_udp::deliver::{Came, Reader};

use crate::packet::{Datagram, Kind, CHUNK_HEADER_BYTES};

pub(crate) struct Acks {
    machine: Receiver,
    origin: Instant,
}

impl Acks {
    pub(crate) fn new(rule: Rule) -> Self {
        Self { machine: Receiver::new(rule), origin: Instant::now() }
    }
}

impl Reader for Acks {
    type Answer = Datagram;

    fn read(&mut self, key: &Key, datagram: &[u8], _extra: usize) -> Option<Came> {
        let found = Datagram::decode(key, datagram)?;
        let now = self.origin.elapsed();
        let chunk = match found.kind {
            // Whether anybody wants it the sink knows: the session may have asked for it again.
            Kind::Chunk(part, header) => {
                self.machine.handle_packet(now, found.number, Some(part));
                Some((header, CHUNK_HEADER_BYTES))
            }
            Kind::Probe => {
                self.machine.handle_packet(now, found.number, None);
                None
            }
            Kind::Ack(_) => return None, // the other pair's
        };
        Some(Came { told: Some(found.told), chunk })
    }

    fn answer(&mut self, told: u64) -> Option<Datagram> {
        self.machine.handle_timeout(self.origin.elapsed());
        let ack = self.machine.poll_ack()?;
        Some(Datagram { kind: Kind::Ack(ack), told, number: 0 })
    }

    fn wakes(&self) -> Option<Instant> {
        self.machine.poll_timeout().map(|at| self.origin + at)
    }
}
