//! The options of this transport, and their values.

use std::time::Duration;

use thalweg_sending::ltp::Rule;
use thalweg_transport::trace::TRACE;
use thalweg_transport::{Chosen, Error, ErrorKind, Fraction, Kind, Options, Result, Setting};
use thalweg_udp::secure::CIPHER;
use thalweg_wire::{Range, Ranges};

/// The longest deadline in milliseconds: a day.
const LONGEST: u64 = 86_400_000;

pub(crate) const SETTINGS: &[Setting] = &[
    CIPHER,
    TRACE,
    Setting {
        name: "close_percent",
        kind: Kind::Number { default: 100, least: 1, most: 100 },
        meaning: "share of an update's chunks after which its receiver wants nothing sent again; repair.policy stands in \
                  for the rest",
        needs: &[],
    },
    Setting {
        name: "critical",
        kind: Kind::Text { default: "" },
        meaning: "byte ranges of an update that are sent until they arrive, such as 0-65536,131072-132096; its first \
                  and last chunk always are",
        needs: &[],
    },
    Setting {
        name: "deadline_ms",
        kind: Kind::Number { default: 0, least: 0, most: LONGEST },
        meaning: "milliseconds after an update's first packet at which its receiver wants nothing more but what is \
                  critical; 0 for none",
        needs: &[],
    },
    Setting {
        name: "repair",
        kind: Kind::Share { default: Fraction::millionths(0) },
        meaning: "repair packets that this end sends beside an update's last packets, as a share of these; twice the \
                  share that the path loses is a good choice; 0 for none but on a path that loses 8 % or more",
        needs: &[],
    },
];

/// The chosen options.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choice {
    /// When this end closes an update that it receives.
    pub rule: Rule,
    /// The bytes that this end retransmits until they arrive.
    pub critical: Ranges,
    /// Number of repair packets for each packet of a block.
    pub repair: f64,
}

fn rule(chosen: &Chosen) -> Rule {
    let deadline = Some(chosen.number("deadline_ms")).filter(|&time| time > 0).map(Duration::from_millis);
    Rule { fraction: chosen.number("close_percent") as f64 / 100.0, deadline }
}

fn critical(chosen: &Chosen) -> Result<Ranges> {
    let text = chosen.text("critical");
    let range = |part: &str| {
        let (start, end) = part.trim().split_once('-')?;
        let range = Range::new(start.trim().parse().ok()?, end.trim().parse().ok()?);
        (!range.is_empty()).then_some(range)
    };
    let parts = text.split(',').filter(|_| !text.trim().is_empty());
    parts.map(range).collect::<Option<Ranges>>().ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "read options", format!("critical is {text:?}"))
            .hint("write ranges of bytes, start-end with commas between them, as 0-65536,131072-132096")
    })
}

/// Reads the options and checks them.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for an unknown option, or for a text that is not a list of ranges.
pub(crate) fn read(options: &Options) -> Result<Choice> {
    let chosen = options.own.read(SETTINGS)?;
    Ok(Choice { rule: rule(&chosen), critical: critical(&chosen)?, repair: chosen.share("repair") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_transport::{Settings, Value};

    fn set(name: &str, value: Value) -> Result<Choice> {
        read(&Options { own: Settings::default().with(name, value), ..Options::default() })
    }

    #[test]
    fn nothing_is_closed_early_or_repaired_unless_said() {
        let none = Choice { rule: Rule::default(), critical: Ranges::new(), repair: 0.0 };
        assert_eq!(read(&Options::default()).unwrap(), none);
    }

    #[test]
    fn what_is_said_counts() {
        let Choice { rule, .. } = set("close_percent", Value::Number(98)).unwrap();
        assert!((rule.fraction - 0.98).abs() < 1e-9);
        let Choice { rule, .. } = set("deadline_ms", Value::Number(250)).unwrap();
        assert_eq!(rule.deadline, Some(Duration::from_millis(250)));
        let Choice { critical, .. } = set("critical", Value::Text("0-64, 128-192".into())).unwrap();
        assert_eq!(critical.iter().collect::<Vec<_>>(), [Range::new(0, 64), Range::new(128, 192)]);
        let Choice { repair, .. } = set("repair", Value::Share(Fraction::millionths(50_000))).unwrap();
        assert!((repair - 0.05).abs() < 1e-9);
    }

    #[test]
    fn what_are_no_ranges_is_refused_with_the_hint() {
        for text in ["x", "5", "9-3", "4-4", "0-1,,2-3", "-1-4", "0-99999999999999999999"] {
            let error = set("critical", Value::Text(text.into())).unwrap_err();
            assert!(error.to_string().contains("0-65536"), "{text}: {error}");
        }
    }
}
