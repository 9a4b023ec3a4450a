//! Receives packets, rebuilds lost ones, and makes the acknowledgements.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::time::Instant;

use thalweg_sending::ltp::{Receiver, Rule};
use thalweg_udp::datagram::Key;
use thalweg_udp::deliver::{Parsed, Reader, Rebuilt};

use crate::packet::{Datagram, Kind, Repair, CHUNK_HEADER_BYTES, REPAIR_HEADER_BYTES};
use crate::repair::{self, Content, COMMON_BYTES};
use crate::send::Stats;

pub(crate) struct Acks {
    machine: Receiver,
    origin: Instant,
    stats: Arc<Stats>,
    /// The highest message count of a chunk or a repair packet so far. Rebuilt chunks get it, since they were
    /// sent before that packet. Probes are left out: else a rebuilt chunk that waits for no message would wait for
    /// those that a probe counts.
    message_count: u64,
    rebuilt: VecDeque<Rebuilt>,
}

impl Acks {
    pub(crate) fn new(rule: Rule, stats: Arc<Stats>) -> Self {
        let (machine, origin, rebuilt) = (Receiver::new(rule), Instant::now(), VecDeque::new());
        Self { machine, origin, stats, message_count: 0, rebuilt }
    }

    /// Passes a repair packet to the receiver's state machine.
    fn repair(&mut self, number: u64, repair: &Repair, datagram: &[u8]) {
        let coded = datagram.get(REPAIR_HEADER_BYTES - COMMON_BYTES..).unwrap_or_default();
        self.machine.handle_repair(number, repair.block, repair.which, coded);
    }

    /// Rebuilds packets where that is possible, and handles them as if they had just arrived.
    fn rebuild(&mut self) {
        while let Some(from) = self.machine.poll_rebuild() {
            let block = from.block;
            let Some(packets) = repair::rebuild(&from) else { continue };
            self.machine.rebuilt(block);
            let now = self.origin.elapsed();
            for (number, content) in packets {
                match content {
                    Content::Probe => {
                        self.machine.handle_packet(now, number, None);
                    }
                    Content::Chunk(part, header, payload) => {
                        self.machine.handle_packet(now, number, Some(part));
                        self.stats.rebuilt.fetch_add(1, Relaxed);
                        self.rebuilt.push_back(Rebuilt {
                            message_count: self.message_count,
                            header,
                            payload,
                        });
                    }
                }
            }
        }
    }
}

impl Reader for Acks {
    type Answer = Datagram;

    fn read(&mut self, key: &Key, datagram: &[u8], _extra: usize, proved: bool) -> Option<Parsed> {
        let Datagram { kind, covered, message_count, number } = Datagram::decode(key, datagram)?;
        if !proved && !matches!(kind, Kind::Probe) {
            return None;
        }
        if !matches!(kind, Kind::Probe | Kind::Ack(_)) {
            self.message_count = self.message_count.max(message_count);
        }
        let now = self.origin.elapsed();
        let chunk = match kind {
            // Pass the chunk on even if the machine knows it. The sink knows whether it is wanted: the
            // session may have asked for it again.
            Kind::Chunk(part, header) => {
                let payload = datagram.get(CHUNK_HEADER_BYTES..).unwrap_or_default();
                if covered && header.verify(payload).is_ok() {
                    self.machine.keep(number, |out| repair::write(part, &header, payload, out));
                }
                self.machine.handle_packet(now, number, Some(part));
                Some((header, CHUNK_HEADER_BYTES))
            }
            Kind::Probe => {
                if covered {
                    self.machine.keep(number, |_| {});
                }
                self.machine.handle_packet(now, number, None);
                None
            }
            Kind::Repair(repair) => {
                self.repair(number, &repair, datagram);
                None
            }
            Kind::Ack(_) => return None, // it belongs on the sockets of the other direction
        };
        self.rebuild();
        Some(Parsed { message_count: Some(message_count), chunk })
    }

    fn rebuilt(&mut self) -> Option<Rebuilt> {
        self.rebuilt.pop_front()
    }

    fn answer(&mut self, message_count: u64) -> Option<Datagram> {
        self.machine.handle_timeout(self.origin.elapsed());
        let ack = self.machine.poll_ack()?;
        Some(Datagram { kind: Kind::Ack(ack), covered: false, message_count, number: 0 })
    }

    fn wakes(&self) -> Option<Instant> {
        self.machine.poll_timeout().map(|at| self.origin + at)
    }
}
