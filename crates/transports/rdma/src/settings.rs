//! What `[transport.options]` says of an rdma link.

use std::time::Duration;

use thalweg_pieces::{Config, Cut, Flight, MOST_PIECE};
use thalweg_transport::{Kind, Options, Result, Setting};

use crate::WORKS;

/// Slots of the ring that commit records are written into.
pub(crate) const SLOTS: usize = 256;

pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        name: "mode",
        kind: Kind::Choice { default: "window", choices: &["window", "pull", "fedrdma-e", "fedrdma", "whole"] },
        meaning: "how chunks move: written in pieces, as many under way as the path carries; read so by their receiver, to \
                  whom nobody writes then, if either end says so; written one piece at a time, from the last to the first \
                  (FedRDMA-E, section 3.2); one piece at a time, each with a header, into one slot (FedRDMA, section 3.1); \
                  or written each at once",
    },
    Setting {
        name: "piece",
        kind: Kind::Number { default: MOST_PIECE, least: 4096, most: 1 << 30 },
        meaning: "with mode = \"fedrdma-e\" or \"fedrdma\", bytes of a piece",
    },
    Setting {
        name: "link_enable",
        kind: Kind::Number { default: 4096, least: 0, most: 1 << 20 },
        meaning: "with mode = \"fedrdma-e\" or \"fedrdma\", bytes of the small piece that leaves first of chunks from 2 MiB on \
                  (section 4.3); 0 for none",
    },
    Setting {
        name: "delay_us",
        kind: Kind::Number { default: 0, least: 0, most: 10_000_000 },
        meaning: "with mode = \"fedrdma-e\" or \"fedrdma\", microseconds between a piece's completion and the next piece \
                  (section 3.2): with \"fedrdma\" what gives the receiver time to empty the slot",
    },
    Setting {
        name: "race",
        kind: Kind::Flag { default: false },
        meaning: "with mode = \"fedrdma-e\", for comparison only: the header is sent as printed (section 3.2), as the first bytes \
                  of the last piece, and the receiver takes what is there when it sees it; damaged chunks are asked for again",
    },
    Setting {
        name: "trust",
        kind: Kind::Choice { default: "tls", choices: &["tls", "fabric"] },
        meaning: "\"fabric\": updates that nothing seals are written over the RDMA network in the clear, because that \
                  network is trusted; \"tls\": such links are tcp under TLS",
    },
];

/// What was chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choices {
    pub(crate) mover: Config,
    pub(crate) style: Style,
    pub(crate) trusts_fabric: bool,
}

/// How an end sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// It writes.
    Writes,
    /// Whoever receives reads, at both ends.
    Pull,
    /// It writes pieces with headers into one slot.
    Slot,
    /// It writes the header in front of the first piece, and a commit record that only ends the grant.
    Printed,
}

impl Choices {
    pub(crate) fn read(options: &Options) -> Result<Self> {
        let chosen = options.own.read(SETTINGS)?;
        let link_enable = Some(chosen.number("link_enable")).filter(|&bytes| bytes > 0);
        let piece = chosen.number("piece");
        let one = Flight::One(Duration::from_micros(chosen.number("delay_us")));
        let (cut, flight) = match chosen.text("mode") {
            "fedrdma-e" => (Cut::Fixed { piece, link_enable }, one),
            "fedrdma" => (Cut::Forward { piece, link_enable }, one),
            "whole" => (Cut::Whole, Flight::All),
            _ => (Cut::Adaptive, Flight::Window),
        };
        let style = match chosen.text("mode") {
            "pull" => Style::Pull,
            "fedrdma" => Style::Slot,
            "fedrdma-e" if chosen.flag("race") => Style::Printed,
            _ => Style::Writes,
        };
        let slots = if matches!(style, Style::Writes | Style::Printed) { SLOTS } else { 0 };
        let mover = Config { cut, flight, pieces: WORKS, slots };
        Ok(Self { mover, style, trusts_fabric: chosen.text("trust") == "fabric" })
    }

    /// What is to be said aloud: that updates are written in the clear where TLS was asked for.
    pub(crate) fn warning(&self, options: &Options) -> Option<&'static str> {
        let in_the_clear = options.tls.is_some() && options.sealed.is_none() && self.trusts_fabric;
        in_the_clear
            .then_some("updates travel in the clear over the RDMA network, as trust = \"fabric\" says")
    }

    /// Why chunks may not be written by RDMA, if they may not: TLS was asked for, and RDMA has none.
    pub(crate) fn refusal(&self, options: &Options) -> Option<String> {
        let in_the_clear = options.tls.is_some() && options.sealed.is_none() && !self.trusts_fabric;
        in_the_clear.then(|| {
            "RDMA encrypts nothing; seal the updates with [layers.seal], or trust the network with the option \
             trust = \"fabric\""
                .into()
        })
    }
}
