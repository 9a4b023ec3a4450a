//! The options of the rdma transport (`[transport.options]`).

use std::time::Duration;

use thalweg_rdma_proto::{Config, Cut, Flight, HEADER, MOST_PIECE};
use thalweg_transport::{Error, ErrorKind, Kind, Need, Options, Result, Setting};
use thalweg_wire::MAX_CHUNK;

use crate::{NOTES, WORKS};

/// Slots of the ring that the peer writes commit records into.
pub(crate) const SLOTS: usize = 256;

/// Most pairs of a direction.
pub(crate) const MOST_PAIRS: usize = 16;

/// Most bytes of a piece. No update is longer.
const LONGEST: u64 = 1 << 40;
/// Most bytes of a piece that goes through the slot.
const SLOT: u64 = MAX_CHUNK as u64 + HEADER;

/// Condition of the settings that apply only when pieces are written one at a time.
const PIECES: Need = Need::Word { name: "mode", among: &["fedrdma-e", "fedrdma"] };

pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        name: "mode",
        kind: Kind::Choice { default: "window", choices: &["window", "pull", "fedrdma-e", "fedrdma", "whole"] },
        meaning: "how updates move: written in pieces, as many under way as the path carries; read so by their receiver, to \
                  whom nobody writes then, if either end says so; written one piece at a time, from the last to the first \
                  (FedRDMA-E, section 3.2); one piece at a time, each with a header, into one slot (FedRDMA, section 3.1); \
                  or written each at once",
        needs: &[],
    },
    Setting {
        name: "piece",
        kind: Kind::Number { default: MOST_PIECE, least: 4096, most: LONGEST },
        meaning: "with mode = \"fedrdma-e\" or \"fedrdma\", bytes of a piece, up to a whole update and its header; with \
                  \"fedrdma\", whose pieces go through one slot, 4 MiB and a header at most",
        needs: &[PIECES],
    },
    Setting {
        name: "link_enable",
        kind: Kind::Number { default: 4096, least: 0, most: 1 << 20 },
        meaning: "with mode = \"fedrdma-e\" or \"fedrdma\", bytes of the small piece that leaves first of updates from 2 MiB on \
                  (section 4.3); 0 for none",
        needs: &[PIECES],
    },
    Setting {
        name: "delay_us",
        kind: Kind::Number { default: 0, least: 0, most: 10_000_000 },
        meaning: "with mode = \"fedrdma-e\" or \"fedrdma\", microseconds between a piece's completion and the next piece \
                  (section 3.2): with \"fedrdma\" what gives the receiver time to empty the slot",
        needs: &[PIECES],
    },
    Setting {
        name: "race",
        kind: Kind::Flag { default: false },
        meaning: "with mode = \"fedrdma-e\", for comparison only: the header is sent as printed (section 3.2), as the first bytes \
                  of the last piece, and the receiver takes what is there when it sees it; a damaged update is asked for again",
        needs: &[Need::Word { name: "mode", among: &["fedrdma-e"] }],
    },
    Setting {
        name: "pairs",
        kind: Kind::Number { default: 1, least: 1, most: MOST_PAIRS as u64 },
        meaning: "with mode = \"window\", queue pairs of each direction, over which an update's chunks are striped: a device \
                  goes back to a lost packet on one pair, and the others go on; the lower of both ends' numbers holds",
        needs: &[Need::Word { name: "mode", among: &["window"] }],
    },
    Setting {
        name: "trust",
        kind: Kind::Choice { default: "tls", choices: &["tls", "fabric"] },
        meaning: "\"fabric\": updates that nothing seals are written over the RDMA network in the clear, because that \
                  network is trusted; \"tls\": such links are tcp under TLS",
        needs: &[],
    },
];

/// The values of the options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choices {
    pub(crate) mover: Config,
    pub(crate) style: Style,
    /// Whether an update is granted and committed as a whole, instead of chunk by chunk.
    pub(crate) whole: bool,
    /// Most pairs of each direction; the peer may have fewer.
    pub(crate) pairs: usize,
    pub(crate) trusts_fabric: bool,
}

/// How an end sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// The sender writes each chunk to its place.
    Writes,
    /// The receiver reads. If one end chooses this, both directions work this way.
    Pull,
    /// The sender writes pieces with headers into one slot (FedRDMA, section 3.1).
    Slot,
    /// The sender writes a header in front of the first piece, and the receiver polls for it (FedRDMA-E as
    /// the paper prints it, section 3.2). The commit record only ends the grant.
    Printed,
}

impl Style {
    /// Whether this build has the style. Two are for comparison only and need the feature `baselines`.
    pub(crate) fn is_available(self) -> bool {
        cfg!(feature = "baselines") || matches!(self, Self::Writes | Self::Pull)
    }
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
        if !style.is_available() {
            let choice = if style == Style::Slot { "mode = \"fedrdma\"" } else { "race = true" };
            return Err(Error::no_baselines("read the options of rdma", choice));
        }
        if style == Style::Slot && piece > SLOT {
            let context = format!("a piece of {piece} bytes; the one slot of mode = \"fedrdma\" has {SLOT}");
            return Err(Error::new(ErrorKind::Unsupported, "read the options of rdma", context)
                .hint("set a shorter piece, or mode = \"fedrdma-e\""));
        }
        let slots = if matches!(style, Style::Writes | Style::Printed) { SLOTS } else { 0 };
        let notes = if style == Style::Slot { NOTES } else { 0 };
        let mover = Config { cut, flight, pieces: WORKS, slots, notes, longest: u64::MAX };
        let whole = cut != Cut::Adaptive;
        let pairs = usize::try_from(chosen.number("pairs")).unwrap_or(1);
        Ok(Self { mover, style, whole, pairs, trusts_fabric: chosen.text("trust") == "fabric" })
    }

    /// A warning if updates travel in the clear although TLS was set.
    pub(crate) fn warning(&self, options: &Options) -> Option<&'static str> {
        let in_the_clear = options.tls.is_some() && options.sealed.is_none() && self.trusts_fabric;
        in_the_clear
            .then_some("updates travel in the clear over the RDMA network, as trust = \"fabric\" says")
    }

    /// The reason why chunks may not be written by RDMA, if there is one: TLS was set, and RDMA cannot
    /// encrypt.
    pub(crate) fn refusal(&self, options: &Options) -> Option<String> {
        let in_the_clear = options.tls.is_some() && options.sealed.is_none() && !self.trusts_fabric;
        in_the_clear.then(|| {
            "RDMA encrypts nothing; seal the updates with [layers.seal], or trust the network with the option \
             trust = \"fabric\""
                .into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(own: &str) -> Result<Choices> {
        let own = serde_json::from_str(own).expect("a JSON object");
        Choices::read(&Options { own, ..Options::default() })
    }

    #[test]
    fn what_has_no_effect_in_a_mode_is_refused() {
        for mode in ["window", "pull", "whole"] {
            for own in [r#""piece": 8192"#, r#""link_enable": 0"#, r#""delay_us": 1"#, r#""race": true"#] {
                let error = read(&format!(r#"{{"mode": "{mode}", {own}}}"#)).expect_err(own);
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert!(
                    error.to_string().contains(&format!("has no effect with mode = \"{mode}\"")),
                    "{error}"
                );
            }
        }
        assert!(read(r#"{"mode": "fedrdma", "race": true}"#).is_err());
        for mode in ["pull", "whole", "fedrdma-e"] {
            let error = read(&format!(r#"{{"mode": "{mode}", "pairs": 2}}"#)).expect_err(mode);
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
        for pairs in [0, 17] {
            assert!(read(&format!(r#"{{"pairs": {pairs}}}"#)).is_err());
        }
        assert_eq!(read(r#"{"pairs": 16}"#).map_or(0, |choices| choices.pairs), 16);
        for own in [
            r#"{"piece": 4194304, "link_enable": 4096, "delay_us": 0, "race": false}"#,
            r#"{"mode": "fedrdma-e", "piece": 8192, "link_enable": 0, "delay_us": 1}"#,
        ] {
            assert!(read(own).is_ok(), "{own}");
        }
    }

    #[test]
    fn baselines_are_refused_where_the_build_has_none() {
        for (own, choice) in [
            (r#"{"mode": "fedrdma", "piece": 8192, "link_enable": 0, "delay_us": 1}"#, "mode = \"fedrdma\""),
            (
                r#"{"mode": "fedrdma-e", "piece": 8192, "link_enable": 0, "delay_us": 1, "race": true}"#,
                "race = true",
            ),
        ] {
            let read = read(own);
            assert_eq!(read.is_ok(), cfg!(feature = "baselines"), "{own}");
            if let Err(error) = read {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert!(error.cause().contains(choice) && error.cause().contains("no baselines"), "{error}");
            }
        }
    }

    /// Table 2 has pieces of 12 MB and 1 GB.
    #[test]
    fn a_piece_may_be_a_whole_update_but_no_longer_than_the_slot() {
        for piece in [65_536_u64, 12_000_000, 1 << 30, 1 << 40] {
            let chosen = read(&format!(r#"{{"mode": "fedrdma-e", "piece": {piece}}}"#)).expect("a piece");
            assert_eq!(chosen.mover.cut, Cut::Fixed { piece, link_enable: Some(4096) });
            assert!(chosen.whole);
        }
        let error = read(r#"{"mode": "fedrdma-e", "piece": 1099511627777}"#).expect_err("too long");
        assert!(error.to_string().contains("from 4096 to 1099511627776"), "{error}");
        let in_slot = |piece: u64| read(&format!(r#"{{"mode": "fedrdma", "piece": {piece}}}"#));
        assert_eq!(in_slot(SLOT).is_ok(), cfg!(feature = "baselines"));
        let error = in_slot(SLOT + 1).expect_err("longer than the slot");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(!cfg!(feature = "baselines") || error.to_string().contains("the one slot"), "{error}");
    }
}
