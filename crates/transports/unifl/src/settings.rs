//! Options of a listener: the section `[transport.options]` of a plan.

use thalweg_masking::Time;
use thalweg_masking::{Config, Rate, Reorder};
use thalweg_transport::trace::{TraceFile, TRACE};
use thalweg_transport::{Chosen, Fraction, Kind, Options, Result, Setting};

pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        name: "backend",
        kind: Kind::Choice { default: "tun", choices: &["tun", "ebpf"] },
        meaning: "who receives: a TCP of our own behind a TUN device, or the kernel's with eBPF programs in front of it",
        needs: &[],
    },
    Setting {
        name: "budget",
        kind: Kind::Share { default: Fraction::millionths(20_000) },
        meaning: "share of an update that may be masked; the sender retransmits what is lost beyond it",
        needs: &[],
    },
    Setting {
        name: "refuse",
        kind: Kind::Share { default: Fraction::millionths(1_000_000) },
        meaning: "the link ends when more than this share of an update is lost, masked or retransmitted",
        needs: &[],
    },
    Setting {
        name: "control",
        kind: Kind::Choice { default: "delay", choices: &["delay", "paper", "fixed", "none"] },
        meaning: "how the window is set: by queueing delay, as in the paper, always `window`, or not at all",
        needs: &[],
    },
    Setting {
        name: "window",
        kind: Kind::Number { default: 1 << 20, least: 1 << 14, most: 1 << 26 },
        meaning: "with control = \"fixed\", bytes that a connection may have under way",
        needs: &[],
    },
    Setting {
        name: "reorder_packets",
        kind: Kind::Number { default: 3, least: 1, most: 1000 },
        meaning: "packets after which a gap in front of them counts as lost",
        needs: &[],
    },
    Setting {
        name: "reorder_ms",
        kind: Kind::Number { default: 50, least: 1, most: 10_000 },
        meaning: "most milliseconds, and else a quarter of the round trip, after which it does so too",
        needs: &[],
    },
    TRACE,
];

/// Default of `receive_buffer`: maximum number of bytes of a connection that wait to be read, or for a
/// retransmission. At 700 Mbit/s and 40 ms, 20 MB arrive behind a segment that was lost three times.
const BUFFER: u64 = 32 << 20;
/// Default of `send_buffer`: maximum number of bytes of a connection that wait to be sent or acknowledged.
const SEND_BUFFER: usize = 4 << 20;

/// Which TCP receiver is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    /// Our own receiver, behind a TUN device.
    Tun,
    /// The kernel's own receiver, with eBPF programs in front of it.
    Ebpf,
}

/// Limits of one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Fraction of an update that may be masked.
    pub budget: f64,
    /// Fraction of an update whose loss ends the link.
    pub refuse: f64,
    /// Maximum number of bytes that wait to be read.
    pub buffer: u64,
    /// Content of the stream.
    pub content: Content,
}

/// The content of a stream. It determines what may be lost.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Content {
    /// Frames of a tcp link. Payloads of chunks may be lost.
    Frames,
    /// An unknown protocol. All bytes may be lost except for this many at its beginning.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    Plain { reliable: u64 },
}

/// Reads the limits of connections, and the settings of the endpoint.
pub(crate) fn read(options: &Options) -> Result<(Limits, Config)> {
    let chosen = options.own.read(SETTINGS)?;
    let defaults = Reorder::default();
    let reorder = Reorder {
        packets: u32::try_from(chosen.number("reorder_packets")).ok(),
        most: Time::from_millis(chosen.number("reorder_ms")),
        ..defaults
    };
    let config = Config {
        rate: rate(&chosen)?,
        reorder,
        offload: true,
        send_buffer: options.send_buffer.map_or(SEND_BUFFER, |bytes| bytes as usize),
        ..Config::default()
    };
    let limits = Limits {
        budget: chosen.share("budget"),
        refuse: chosen.share("refuse"),
        buffer: options.receive_buffer.map_or(BUFFER, u64::from),
        content: Content::Frames,
    };
    Ok((limits, config))
}

/// Reads which receiver to use.
pub(crate) fn backend(options: &Options) -> Result<Backend> {
    Ok(match options.own.read(SETTINGS)?.text("backend") {
        "ebpf" => Backend::Ebpf,
        _ => Backend::Tun,
    })
}

/// The trace file that the options name, if any.
pub(crate) fn trace(options: &Options) -> Result<Option<TraceFile>> {
    TraceFile::open(&options.own.read(SETTINGS)?)
}

fn rate(chosen: &Chosen) -> Result<Rate> {
    Ok(match chosen.text("control") {
        "none" => Rate::None,
        "fixed" => Rate::Fixed(chosen.number("window")),
        #[cfg(feature = "baselines")]
        "paper" => Rate::Paper(thalweg_masking::PaperSettings::default()),
        #[cfg(not(feature = "baselines"))]
        "paper" => {
            return Err(thalweg_transport::Error::no_baselines(
                "read the options of unifl",
                "control = \"paper\"",
            ))
        }
        _ => Rate::default(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is how tests report
mod tests {
    use thalweg_transport::ErrorKind;

    use super::*;

    fn options(json: &str) -> Options {
        Options { own: serde_json::from_str(json).unwrap(), ..Options::default() }
    }

    #[test]
    fn what_is_set_reaches_the_endpoint() {
        let (limits, config) = read(&options("{}")).unwrap();
        assert_eq!((limits.budget, limits.refuse), (0.02, 1.0));
        assert!(matches!(config.rate, Rate::Delay(_)) && config.reorder.packets == Some(3));
        let set = r#"{"budget": 0.1, "refuse": 1, "control": "fixed", "window": 65536, "reorder_ms": 7}"#;
        let (limits, config) = read(&options(set)).unwrap();
        assert_eq!((limits.budget, limits.refuse), (0.1, 1.0));
        assert!(matches!(config.rate, Rate::Fixed(65_536)) && config.reorder.most == Time::from_millis(7));
        let rate = |set: &str| read(&options(set)).unwrap().1.rate;
        #[cfg(feature = "baselines")]
        assert!(matches!(rate(r#"{"control": "paper"}"#), Rate::Paper(_)));
        assert!(matches!(rate(r#"{"control": "none"}"#), Rate::None));
        assert_eq!(backend(&options("{}")).unwrap(), Backend::Tun);
        assert_eq!(backend(&options(r#"{"backend": "ebpf"}"#)).unwrap(), Backend::Ebpf);
        let error = read(&options(r#"{"budget": 2}"#)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[cfg(not(feature = "baselines"))]
    #[test]
    fn a_build_without_baselines_refuses_the_control_of_the_paper() {
        let error = read(&options(r#"{"control": "paper"}"#)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.cause().contains("control = \"paper\"") && error.cause().contains("no baselines"),
            "{error}"
        );
    }
}
