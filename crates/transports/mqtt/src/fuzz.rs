//! Properties that hold for any bytes from a broker. libFuzzer checks them, and so does the test below.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::inbox::Inbox;
use crate::packets::{Incoming, Version};

/// Longest packet that is accepted.
const MOST: usize = 4096;

/// The first byte chooses the version; the others are read as packets. A packet never takes more bytes than
/// there are, and a message has no more bytes than its packet. A message that is too long is skipped. Invalid
/// bytes end reading with an error.
pub fn inbox(bytes: &[u8]) {
    let Some((choice, stream)) = bytes.split_first() else { return };
    let version = if choice & 1 == 0 { Version::V311 } else { Version::V5 };
    let mut inbox = Inbox::new(Box::new(std::io::Cursor::new(stream.to_vec())), version, MOST);
    let mut taken = 0;
    loop {
        let next = pin!(inbox.next()).poll(&mut Context::from_waker(Waker::noop()));
        assert!(next.is_ready(), "it waits for bytes that are there");
        let Poll::Ready(Ok((incoming, wire))) = next else { return };
        taken += wire;
        if let Incoming::TooLong { qos, .. } = incoming {
            assert!(wire > MOST as u64 && qos <= 2, "a packet of {wire} bytes");
            // The next call skips its bytes.
            continue;
        }
        assert!((2..=MOST as u64).contains(&wire), "a packet of {wire} bytes");
        assert!(taken <= stream.len() as u64, "more bytes than there are");
        if let Incoming::Publish { topic, payload, qos, .. } = incoming {
            assert!(((topic.len() + payload.len()) as u64) < wire && qos <= 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets::{publish, Hello, Retain, Small};

    /// Packets that a broker sends, and packets that it never sends, in both versions.
    fn samples() -> Vec<Vec<u8>> {
        let mut samples = Vec::new();
        for (choice, version) in [(0, Version::V311), (1, Version::V5)] {
            let will = ("a/gone".into(), "has left", false);
            let hello = Hello {
                client: "tw",
                keep_alive: 60,
                login: None,
                will,
                max_packet: 1 << 20,
                max_inflight: 9,
            };
            let mut packets = vec![
                publish(version, "a/group", (0, 0, Retain::No), b"head", &[7; 200]),
                publish(version, "a/model/0", (1, 9, Retain::For(60)), b"head", b"body"),
                publish(version, "a/here", (2, 10, Retain::Yes), b"", b"tw"),
                version.connect(&hello).unwrap(),
                version.subscribe(3, &["a/+".into(), "b".into()], 1).unwrap(),
                vec![0xd0, 0],                       // PINGRESP
                vec![0x20, 2, 0, 0],                 // CONNACK of 3.1.1
                vec![0x20, 6, 0, 0, 3, 0x21, 0, 20], // CONNACK of 5, with Receive Maximum
                vec![0x90, 4, 0, 3, 0, 1],           // SUBACK of 3.1.1
                vec![0x90, 5, 0, 3, 0, 0, 1],        // SUBACK of 5
                vec![0xe0, 2, 0x8e, 0],              // DISCONNECT of 5
                vec![0x40, 4, 0, 9, 0x10, 0],        // PUBACK of 5
            ];
            let small =
                [Small::Ack(1), Small::Rec(2), Small::Rel(3), Small::Comp(4), Small::Ping, Small::Bye];
            packets.extend(small.map(Small::bytes));
            let all = packets.concat();
            packets.push(all);
            samples.extend(packets.into_iter().map(|packet| [vec![choice], packet].concat()));
        }
        samples
    }

    #[test]
    fn damaged_packets_are_refused_or_read() {
        thalweg_conformance::damage(&samples(), |_, _| {}, inbox);
    }
}
