//! Messages between the two ends of a link, beside the session's control messages. They travel in the
//! payloads of chunks on the inner link. So control messages keep their form and length, and a peer that has
//! not authenticated itself cannot send any of these.

use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_verbs::{Endpoint, Remote, ENDPOINT_BYTES};
use thalweg_wire::{FrameHeader, Kind, Range, HEADER_BYTES};

use crate::extent::{Extent, Part};

/// Bytes of a commit record, which are also the bytes of a slot in the ring.
pub(crate) const RECORD: usize = 64;

/// Number of the pair on links that have one in each direction.
pub(crate) const ONLY: u8 = 0;

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Word {
    /// The sender offers an extent. Its first part has this number, and memory may be granted to it. Numbers
    /// count parts from 0.
    Offer { number: u64, extent: Extent },
    /// Memory may be granted to the next part of the extent offered last.
    Ready { number: u64 },
    /// The sender withdraws a part. If it had already committed the part, the commit record still arrives.
    Withdraw { number: u64, committed: bool },
    /// The sender lends a part of the extent offered last: the receiver may read it there. Numbers grow. After
    /// a pair was lost, the sender lends the part again with its place for the new pair.
    Lent { number: u64, sum: u32, from: Remote },
    /// The receiver grants memory: the sender may write the part there, over this pair alone.
    Grant { number: u64, pair: u8, to: Remote },
    /// The checksum of a part whose pieces are written into the one slot.
    Sum { number: u64, sum: u32 },
    /// The sender has written all pieces of a part into the one slot, and asks which ranges are missing.
    Sent { number: u64 },
    /// The receiver answers [`Word::Sent`]: this range is missing. One message for each missing range.
    Missing { number: u64, range: Range },
    /// The receiver has read this many notes since its last message of this kind, so the sender may write as
    /// many more pieces into the slot.
    Noted { count: u32 },
    /// The receiver has delivered or dropped the part.
    Taken { number: u64 },
    /// The side that moves the bytes has lost this pair. It sends the endpoint of its next pair.
    Renew { pair: u8, epoch: u32, endpoint: Endpoint },
    /// The other side's answer to [`Word::Renew`]: its endpoint, and where its ring or slot is. All earlier
    /// grants and loans of this pair are void.
    Ring { pair: u8, epoch: u32, endpoint: Endpoint, ring: Remote },
    /// The other side reports that its end of this pair is lost.
    Broken { pair: u8, epoch: u32 },
}

fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "receive", format!("{what} from the peer of an rdma link"))
}

/// Appends an address and its key.
pub(crate) fn put_remote(out: &mut Vec<u8>, remote: Remote) {
    out.extend(remote.address.to_le_bytes());
    out.extend(remote.key.to_le_bytes());
}

/// Takes values off the front of a slice.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (first, rest) =
            self.0.split_first_chunk::<N>().ok_or_else(|| corrupt("a word that is cut off"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn short(&mut self) -> Result<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn remote(&mut self) -> Result<Remote> {
        Ok(Remote { address: self.number()?, key: self.short()? })
    }

    pub(crate) fn endpoint(&mut self) -> Result<Endpoint> {
        let bytes: [u8; ENDPOINT_BYTES] = self.take()?;
        Endpoint::decode(&bytes).ok_or_else(|| corrupt("an endpoint that no device has"))
    }

    fn pair(&mut self) -> Result<u8> {
        self.take().map(|[pair]| pair)
    }

    fn extent(&mut self) -> Result<Extent> {
        let FrameHeader { kind, chunk: first, .. } = FrameHeader::decode(&self.take::<HEADER_BYTES>()?)?;
        let all = Part { first, chunk: self.short()?, bytes: self.number()? };
        let extent = Extent { all, whole: self.take::<1>()? == [1] };
        let plausible = kind == Kind::Chunk && all.is_plausible();
        plausible.then_some(extent).ok_or_else(|| corrupt("an offer of what is no extent"))
    }

    fn word(&mut self) -> Result<Word> {
        let [tag] = self.take()?;
        Ok(match tag {
            0 => Word::Offer { number: self.number()?, extent: self.extent()? },
            1 => Word::Withdraw { number: self.number()?, committed: self.take::<1>()? == [1] },
            2 => Word::Grant { number: self.number()?, pair: self.pair()?, to: self.remote()? },
            3 => Word::Taken { number: self.number()? },
            4 => Word::Renew { pair: self.pair()?, epoch: self.short()?, endpoint: self.endpoint()? },
            5 => Word::Ring {
                pair: self.pair()?,
                epoch: self.short()?,
                endpoint: self.endpoint()?,
                ring: self.remote()?,
            },
            6 => Word::Broken { pair: self.pair()?, epoch: self.short()? },
            7 => Word::Lent { number: self.number()?, sum: self.short()?, from: self.remote()? },
            8 => Word::Sent { number: self.number()? },
            9 => Word::Missing { number: self.number()?, range: Range::new(self.number()?, self.number()?) },
            10 => Word::Ready { number: self.number()? },
            11 => Word::Sum { number: self.number()?, sum: self.short()? },
            12 => Word::Noted { count: self.short()? },
            _ => return Err(corrupt("an unknown word")),
        })
    }
}

impl Word {
    /// Appends the encoded message.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Word::Offer { number, extent: Extent { all, whole } } => {
                out.push(0);
                out.extend(number.to_le_bytes());
                out.extend(FrameHeader::chunk(all.first, 0).encode());
                out.extend(all.chunk.to_le_bytes());
                out.extend(all.bytes.to_le_bytes());
                out.push(u8::from(*whole));
            }
            Word::Ready { number } => {
                out.push(10);
                out.extend(number.to_le_bytes());
            }
            Word::Sum { number, sum } => {
                out.push(11);
                out.extend(number.to_le_bytes());
                out.extend(sum.to_le_bytes());
            }
            Word::Lent { number, sum, from } => {
                out.push(7);
                out.extend(number.to_le_bytes());
                out.extend(sum.to_le_bytes());
                put_remote(out, *from);
            }
            Word::Withdraw { number, committed } => {
                out.push(1);
                out.extend(number.to_le_bytes());
                out.push(u8::from(*committed));
            }
            Word::Grant { number, pair, to } => {
                out.push(2);
                out.extend(number.to_le_bytes());
                out.push(*pair);
                put_remote(out, *to);
            }
            Word::Sent { number } => {
                out.push(8);
                out.extend(number.to_le_bytes());
            }
            Word::Missing { number, range } => {
                out.push(9);
                [*number, range.start, range.end].iter().for_each(|number| out.extend(number.to_le_bytes()));
            }
            Word::Noted { count } => {
                out.push(12);
                out.extend(count.to_le_bytes());
            }
            Word::Taken { number } => {
                out.push(3);
                out.extend(number.to_le_bytes());
            }
            Word::Renew { pair, epoch, endpoint } => {
                out.extend([4, *pair]);
                out.extend(epoch.to_le_bytes());
                out.extend(endpoint.encode());
            }
            Word::Ring { pair, epoch, endpoint, ring } => {
                out.extend([5, *pair]);
                out.extend(epoch.to_le_bytes());
                out.extend(endpoint.encode());
                put_remote(out, *ring);
            }
            Word::Broken { pair, epoch } => {
                out.extend([6, *pair]);
                out.extend(epoch.to_le_bytes());
            }
        }
    }

    /// Decodes all messages of a payload.
    pub(crate) fn decode_all(bytes: &[u8]) -> Result<Vec<Word>> {
        let (mut reader, mut words) = (Reader(bytes), Vec::new());
        while !reader.0.is_empty() {
            words.push(reader.word()?);
        }
        Ok(words)
    }
}

/// The commit record of a part, with the part's checksum.
pub(crate) fn record(number: u64, sum: u32) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..8].copy_from_slice(&number.to_le_bytes());
    record[8..12].copy_from_slice(&sum.to_le_bytes());
    record
}

/// The number and the checksum of the part that a commit record belongs to.
pub(crate) fn recorded(record: &[u8; RECORD]) -> (u64, u32) {
    let (mut number, mut sum) = ([0; 8], [0; 4]);
    number.copy_from_slice(&record[..8]);
    sum.copy_from_slice(&record[8..12]);
    (u64::from_le_bytes(number), u32::from_le_bytes(sum))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use thalweg_wire::{ChunkHeader, LayoutHash, MAX_CHUNK};

    fn words() -> Vec<Word> {
        let chunk = ChunkHeader { job: 1, round: 2, sender: 3, layout: LayoutHash(4), offset: 5, length: 6 };
        let endpoint = Endpoint { gid: [7; 16], number: 8, first: 9, mtu: 4096, reads: 16 };
        let to = Remote { address: 10, key: 11 };
        let all = Part { first: chunk, chunk: MAX_CHUNK, bytes: 1 << 33 };
        vec![
            Word::Offer { number: 1, extent: Extent { all, whole: true } },
            Word::Offer { number: 2, extent: Extent { all: Part::one(chunk), whole: false } },
            Word::Ready { number: 3 },
            Word::Sum { number: 4, sum: 5 },
            Word::Withdraw { number: 2, committed: true },
            Word::Withdraw { number: 3, committed: false },
            Word::Grant { number: u64::MAX, pair: 3, to },
            Word::Taken { number: 4 },
            Word::Renew { pair: 1, epoch: 5, endpoint },
            Word::Ring { pair: 2, epoch: 6, endpoint, ring: to },
            Word::Broken { pair: 15, epoch: 7 },
            Word::Sent { number: 10 },
            Word::Noted { count: 14 },
            Word::Missing { number: 11, range: Range::new(12, 13) },
            Word::Lent { number: 8, sum: 9, from: to },
        ]
    }

    #[test]
    fn words_come_as_they_were_said() {
        let mut bytes = Vec::new();
        words().iter().for_each(|word| word.encode(&mut bytes));
        assert_eq!(Word::decode_all(&bytes).unwrap(), words());
        for end in 1..bytes.len() {
            match Word::decode_all(&bytes[..end]) {
                Ok(some) => assert_eq!(some, words()[..some.len()], "cut between two words"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
            }
        }
    }

    #[test]
    fn damaged_words_are_refused_or_words() {
        let samples: Vec<Vec<u8>> = words()
            .iter()
            .map(|word| {
                let mut bytes = Vec::new();
                word.encode(&mut bytes);
                bytes
            })
            .collect();
        thalweg_conformance::damage(
            &samples,
            |_, _| {},
            |bytes| {
                for word in Word::decode_all(bytes).into_iter().flatten() {
                    if let Word::Offer { extent, .. } = word {
                        assert!(extent.all.chunks().take(3).all(|chunk| chunk.length <= MAX_CHUNK));
                    }
                }
            },
        );
        let chunk = ChunkHeader { job: 0, round: 0, sender: 0, layout: LayoutHash(0), offset: 0, length: 0 };
        let mut empty = Vec::new();
        let extent = Extent { all: Part::one(chunk), whole: false };
        Word::Offer { number: 0, extent }.encode(&mut empty);
        assert!(Word::decode_all(&empty).is_err(), "a chunk without bytes");
    }

    #[test]
    fn records_name_their_grant() {
        for (number, sum) in [(0, 7), (1, 0), (u64::MAX, u32::MAX)] {
            assert_eq!(recorded(&record(number, sum)), (number, sum));
        }
    }
}
