//! Reads the `udp` transport's datagrams and counts what has arrived, for reports to the sender.

use crate::datagram::{Datagram, Key, Kind, CHUNK_HEADER_BYTES};
use crate::deliver::{Parsed, Reader};
use crate::window::cost;

/// Counts what has arrived in one direction, and writes reports of it.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// Greatest position received, and total cost received.
    seen: u64,
    received: u64,
    /// A datagram has asked for a report since the last report.
    wanted: bool,
}

impl Reader for Reports {
    type Answer = Datagram;

    fn read(&mut self, key: &Key, datagram: &[u8], extra: usize, proved: bool) -> Option<Parsed> {
        let found = Datagram::decode(key, datagram)?;
        if matches!(found.kind, Kind::Chunk(_)) && !proved {
            return None;
        }
        self.wanted |= found.report_wanted;
        let chunk = match found.kind {
            Kind::Chunk(header) => Some((header, CHUNK_HEADER_BYTES)),
            Kind::Probe => None,
            Kind::Report(_) | Kind::Hello => return Some(Parsed { message_count: None, chunk: None }),
        };
        if chunk.is_some() {
            self.received = self.received.saturating_add(cost(datagram.len() + extra));
        }
        self.seen = self.seen.max(found.position);
        Some(Parsed { message_count: Some(found.message_count), chunk })
    }

    /// If this report gets lost, the sender asks again.
    fn answer(&mut self, message_count: u64) -> Option<Datagram> {
        let kind = Kind::Report(self.received);
        let report = Datagram { kind, report_wanted: false, message_count, position: self.seen };
        std::mem::take(&mut self.wanted).then_some(report)
    }
}
