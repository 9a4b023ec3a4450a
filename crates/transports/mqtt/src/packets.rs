//! The packets of MQTT 3.1.1 and 5. rumqttc encodes and decodes them, except for outgoing PUBLISH packets:
//! rumqttc would copy their payload once more.

use bytes::{Bytes, BytesMut};
use rumqttc::mqttbytes::{self as old, v4, QoS};
use rumqttc::v5::mqttbytes::{self as new, v5};
use thalweg_transport::Login;

/// The property Message Expiry Interval (MQTT 5, section 2.2.2.2).
const MESSAGE_EXPIRY: u8 = 2;

/// A version of MQTT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// 3.1.1, the OASIS standard of 2014.
    V311,
    /// 5, the OASIS standard of 2019.
    V5,
}

/// What a client states in its CONNECT.
pub(crate) struct Hello<'a> {
    pub client: &'a str,
    pub keep_alive: u16,
    pub login: Option<&'a Login>,
    /// Topic and text of the last will, and whether the broker retains it.
    pub will: (String, &'static str, bool),
    /// Longest packet that this end accepts, in bytes.
    pub max_packet: u32,
    /// Maximum number of unacknowledged QoS 1 and 2 messages that this end accepts.
    pub max_inflight: u16,
}

/// What a broker supports, from its CONNACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub max_packet: Option<u32>,
    pub max_inflight: Option<u16>,
    pub max_qos: u8,
    pub retain: bool,
}

/// A packet from the broker.
#[derive(Debug)]
pub(crate) enum Incoming {
    Accepted(Limits),
    /// The reason of a refused CONNECT, and whether another login could help.
    Refused(String, bool),
    Publish {
        topic: Bytes,
        id: u16,
        qos: u8,
        payload: Bytes,
    },
    /// A message that is longer than any of ours, so it was skipped.
    TooLong {
        id: u16,
        qos: u8,
    },
    /// PUBACK, with the reason if the broker has refused the message.
    Acknowledged(u16, Option<String>),
    Received(u16, Option<String>),
    Release(u16),
    Complete(u16),
    /// SUBACK; whether all subscriptions were granted.
    Subscribed(u16, bool),
    Pong,
    Disconnect(String),
}

/// The length of a packet from its first bytes; `None` if there are too few bytes (section 2.2.3 of MQTT
/// 3.1.1, 2.1.4 of MQTT 5).
///
/// # Errors
/// What is wrong with the bytes.
pub(crate) fn length(first: &[u8]) -> Result<Option<usize>, String> {
    let mut remaining = 0_usize;
    for (n, &byte) in first.iter().skip(1).take(4).enumerate() {
        remaining |= usize::from(byte & 0x7f) << (7 * n);
        if byte & 0x80 == 0 {
            return Ok(Some(n + 2 + remaining));
        }
    }
    if first.len() > 4 {
        return Err("a length of more than four bytes".into());
    }
    Ok(None)
}

/// Identifier and QoS of a PUBLISH packet that is too long to be kept, from its first bytes. `None` if there
/// are too few bytes (section 3.3 of both standards).
///
/// # Errors
/// Any other packet that is too long, and an invalid QoS.
pub(crate) fn too_long(first: &[u8]) -> Result<Option<Incoming>, String> {
    const PUBLISH: u8 = 3;
    let Some(&kind) = first.first() else { return Ok(None) };
    if kind >> 4 != PUBLISH {
        return Err(format!("a packet of kind {} that is too long", kind >> 4));
    }
    let qos = kind >> 1 & 3;
    if qos > 2 {
        return Err("a message of QoS 3".into());
    }
    let Some(at) = first.iter().skip(1).position(|byte| byte & 0x80 == 0).map(|at| at + 2) else {
        return Ok(None);
    };
    let number = |at: usize| first.get(at..at + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    let Some(topic) = number(at) else { return Ok(None) };
    if qos == 0 {
        return Ok(Some(Incoming::TooLong { id: 0, qos }));
    }
    Ok(number(at + 2 + usize::from(topic)).map(|id| Incoming::TooLong { id, qos }))
}

/// Whether the broker retains a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retain {
    No,
    /// Until another one replaces it.
    Yes,
    /// For at most this many seconds (MQTT 5, section 3.3.2.3.3). Version 3.1.1 retains it without a limit.
    For(u32),
}

/// Encodes a PUBLISH packet. Copies `head` and `body`, which form its payload, once.
pub(crate) fn publish(
    version: Version,
    topic: &str,
    (qos, id, retain): (u8, u16, Retain),
    head: &[u8],
    body: &[u8],
) -> Vec<u8> {
    let expiry = match retain {
        Retain::For(seconds) => [&[5, MESSAGE_EXPIRY][..], &seconds.to_be_bytes()].concat(),
        _ => vec![0], // no properties
    };
    let properties = if version == Version::V5 { &expiry[..] } else { &[] };
    let variable = 2 + topic.len() + if qos > 0 { 2 } else { 0 } + properties.len();
    let mut remaining = variable + head.len() + body.len();
    let mut packet = Vec::with_capacity(5 + remaining);
    packet.push(0x30 | qos << 1 | u8::from(retain != Retain::No));
    loop {
        let more = if remaining > 0x7f { 0x80 } else { 0 };
        packet.push((remaining & 0x7f) as u8 | more);
        remaining >>= 7;
        if remaining == 0 {
            break;
        }
    }
    packet.extend_from_slice(&(topic.len() as u16).to_be_bytes());
    packet.extend_from_slice(topic.as_bytes());
    if qos > 0 {
        packet.extend_from_slice(&id.to_be_bytes());
    }
    packet.extend_from_slice(properties);
    packet.extend_from_slice(head);
    packet.extend_from_slice(body);
    packet
}

/// Maximum number of bytes of a PUBLISH packet besides its payload.
pub(crate) fn publish_overhead(topic: &str) -> usize {
    5 + 2 + topic.len() + 2 + 6
}

/// A short packet that this end sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Small {
    Ack(u16),
    Rec(u16),
    Rel(u16),
    Comp(u16),
    Ping,
    Bye,
}

impl Small {
    /// Encodes the packet. The bytes are the same in both versions: no properties, and the reason code for
    /// success.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let with_id = |kind: u8, id: u16| [vec![kind, 2], id.to_be_bytes().to_vec()].concat();
        match self {
            Small::Ack(id) => with_id(0x40, id),
            Small::Rec(id) => with_id(0x50, id),
            Small::Rel(id) => with_id(0x62, id),
            Small::Comp(id) => with_id(0x70, id),
            Small::Ping => vec![0xc0, 0],
            Small::Bye => vec![0xe0, 0],
        }
    }
}

impl Version {
    pub(crate) fn connect(self, hello: &Hello<'_>) -> Result<Vec<u8>, String> {
        let mut out = BytesMut::new();
        let (topic, text, retain) = &hello.will;
        let text = text.as_bytes().to_vec();
        match self {
            Version::V311 => {
                let mut connect = v4::Connect::new(hello.client);
                connect.keep_alive = hello.keep_alive;
                connect.clean_session = true;
                connect.last_will = Some(v4::LastWill::new(topic, text, QoS::AtMostOnce, *retain));
                connect.login = hello.login.map(|l| v4::Login::new(&l.user, &l.password));
                connect.write(&mut out).map_err(|e| e.to_string())?;
            }
            Version::V5 => {
                let mut properties = v5::ConnectProperties::new();
                properties.max_packet_size = Some(hello.max_packet);
                properties.receive_maximum = Some(hello.max_inflight);
                let connect = v5::Connect {
                    keep_alive: hello.keep_alive,
                    client_id: hello.client.into(),
                    clean_start: true,
                    properties: Some(properties),
                };
                let will = v5::LastWill {
                    topic: Bytes::copy_from_slice(topic.as_bytes()),
                    message: text.into(),
                    qos: new::QoS::AtMostOnce,
                    retain: *retain,
                    properties: None,
                };
                let login = hello.login.map(|l| v5::Login::new(&l.user, &l.password));
                connect.write(&Some(will), &login, &mut out).map_err(|e| e.to_string())?;
            }
        }
        Ok(out.into())
    }

    pub(crate) fn subscribe(self, id: u16, topics: &[String], qos: u8) -> Result<Vec<u8>, String> {
        let mut out = BytesMut::new();
        match self {
            Version::V311 => {
                let qos = old::qos(qos).map_err(|e| e.to_string())?;
                let filters = topics.iter().map(|topic| v4::SubscribeFilter::new(topic.clone(), qos));
                let mut packet = v4::Subscribe::new_many(filters);
                packet.pkid = id;
                packet.write(&mut out).map_err(|e| e.to_string())?;
            }
            Version::V5 => {
                let qos = new::qos(qos).ok_or("no such QoS")?;
                let filters = topics.iter().map(|topic| v5::Filter::new(topic.clone(), qos));
                let mut packet = v5::Subscribe::new_many(filters, None);
                packet.pkid = id;
                packet.write(&mut out).map_err(|e| e.to_string())?;
            }
        }
        Ok(out.into())
    }

    /// Decodes a complete packet.
    pub(crate) fn read(self, mut packet: BytesMut) -> Result<Incoming, String> {
        let most = packet.len();
        match self {
            Version::V311 => v4::Packet::read(&mut packet, most).map_err(|e| e.to_string()).and_then(read_v4),
            Version::V5 if packet[..] == [0xe0, 0] => Ok(Incoming::Disconnect("it says no reason".into())),
            Version::V5 => v5::Packet::read(&mut packet, None).map_err(|e| e.to_string()).and_then(read_v5),
        }
    }
}

fn read_v4(packet: v4::Packet) -> Result<Incoming, String> {
    use v4::{ConnectReturnCode as Code, Packet, SubscribeReasonCode};
    Ok(match packet {
        Packet::ConnAck(ack) if ack.code == Code::Success => {
            Incoming::Accepted(Limits { max_packet: None, max_inflight: None, max_qos: 2, retain: true })
        }
        Packet::ConnAck(ack) => {
            let login = matches!(ack.code, Code::BadUserNamePassword | Code::NotAuthorized);
            Incoming::Refused(format!("{:?}", ack.code), login)
        }
        Packet::Publish(p) => {
            Incoming::Publish { topic: p.topic.into(), id: p.pkid, qos: p.qos as u8, payload: p.payload }
        }
        Packet::PubAck(ack) => Incoming::Acknowledged(ack.pkid, None),
        Packet::PubRec(rec) => Incoming::Received(rec.pkid, None),
        Packet::PubRel(rel) => Incoming::Release(rel.pkid),
        Packet::PubComp(comp) => Incoming::Complete(comp.pkid),
        Packet::SubAck(ack) => {
            let taken = ack.return_codes.iter().all(|code| matches!(code, SubscribeReasonCode::Success(_)));
            Incoming::Subscribed(ack.pkid, taken)
        }
        Packet::PingResp => Incoming::Pong,
        other => return Err(format!("{other:?}, which no broker sends")),
    })
}

fn read_v5(packet: v5::Packet) -> Result<Incoming, String> {
    use v5::{ConnectReturnCode as Code, Packet, PubAckReason, PubRecReason, SubscribeReasonCode};
    Ok(match packet {
        Packet::ConnAck(ack) if ack.code == Code::Success => {
            let properties = ack.properties;
            let properties = properties.as_ref();
            Incoming::Accepted(Limits {
                max_packet: properties.and_then(|p| p.max_packet_size),
                max_inflight: properties.and_then(|p| p.receive_max),
                max_qos: properties.and_then(|p| p.max_qos).unwrap_or(2),
                retain: properties.and_then(|p| p.retain_available) != Some(0),
            })
        }
        Packet::ConnAck(ack) => {
            let login = matches!(
                ack.code,
                Code::BadUserNamePassword
                    | Code::NotAuthorized
                    | Code::Banned
                    | Code::BadAuthenticationMethod
            );
            Incoming::Refused(format!("{:?}", ack.code), login)
        }
        Packet::Publish(p) => {
            Incoming::Publish { topic: p.topic, id: p.pkid, qos: p.qos as u8, payload: p.payload }
        }
        Packet::PubAck(ack) => {
            let taken = matches!(ack.reason, PubAckReason::Success | PubAckReason::NoMatchingSubscribers);
            Incoming::Acknowledged(ack.pkid, (!taken).then(|| format!("{:?}", ack.reason)))
        }
        Packet::PubRec(rec) => {
            let taken = matches!(rec.reason, PubRecReason::Success | PubRecReason::NoMatchingSubscribers);
            Incoming::Received(rec.pkid, (!taken).then(|| format!("{:?}", rec.reason)))
        }
        Packet::PubRel(rel) => Incoming::Release(rel.pkid),
        Packet::PubComp(comp) => Incoming::Complete(comp.pkid),
        Packet::SubAck(ack) => {
            let taken = ack.return_codes.iter().all(|code| matches!(code, SubscribeReasonCode::Success(_)));
            Incoming::Subscribed(ack.pkid, taken)
        }
        Packet::PingResp(_) => Incoming::Pong,
        Packet::Disconnect(bye) => Incoming::Disconnect(format!("{:?}", bye.reason_code)),
        other => return Err(format!("{other:?}, which no broker sends")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publish_reads_back_in_both_versions() {
        for version in [Version::V311, Version::V5] {
            for (qos, id) in [(0, 0), (1, 7), (2, 65535)] {
                for size in [0, 100, 20_000, 300_000] {
                    let body = vec![3; size];
                    let retain = [Retain::No, Retain::Yes, Retain::For(3600)][usize::from(qos)];
                    let packet = publish(version, "a/b", (qos, id, retain), b"head", &body);
                    assert_eq!(length(&packet[..5.min(packet.len())]), Ok(Some(packet.len())));
                    assert!(packet.len() <= publish_overhead("a/b") + 4 + size);
                    let read = version.read(BytesMut::from(&packet[..])).unwrap();
                    let Incoming::Publish { topic, id: got, qos: level, payload } = read else {
                        panic!("{read:?}");
                    };
                    assert_eq!((&topic[..], got, level), (&b"a/b"[..], id, qos));
                    assert_eq!((&payload[..4], &payload[4..]), (&b"head"[..], &body[..]));
                }
            }
        }
    }

    #[test]
    fn a_length_is_believed_only_when_it_is_whole() {
        assert_eq!(length(&[0x30]), Ok(None));
        assert_eq!(length(&[0x30, 0x80]), Ok(None));
        assert_eq!(length(&[0x30, 0x80, 0x01]), Ok(Some(131)));
        assert!(length(&[0x30, 0x80, 0x80, 0x80, 0x80]).is_err());
    }

    #[test]
    fn small_packets_are_those_of_the_standards() {
        for version in [Version::V311, Version::V5] {
            let read = |small: Small| version.read(BytesMut::from(&small.bytes()[..])).unwrap();
            assert!(matches!(read(Small::Ack(258)), Incoming::Acknowledged(258, None)));
            assert!(matches!(read(Small::Rec(258)), Incoming::Received(258, None)));
            assert!(matches!(read(Small::Rel(258)), Incoming::Release(258)));
            assert!(matches!(read(Small::Comp(258)), Incoming::Complete(258)));
            assert!(version.read(BytesMut::from(&Small::Ping.bytes()[..])).is_err(), "no broker asks");
        }
    }

    #[test]
    fn damaged_packets_are_errors() {
        let packet = publish(Version::V5, "topic", (1, 9, Retain::No), b"head", b"body");
        for version in [Version::V311, Version::V5] {
            for at in 0..packet.len() {
                for bit in 0..8 {
                    let mut damaged = packet.clone();
                    damaged[at] ^= 1 << bit;
                    let whole = length(&damaged[..5]).ok().flatten() == Some(damaged.len());
                    if whole {
                        let _ = version.read(BytesMut::from(&damaged[..])); // must not panic
                    }
                }
            }
        }
    }
}
