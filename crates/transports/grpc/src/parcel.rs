//! The messages of unary calls: a whole update, or a piece of one, as one gRPC message.

use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{encode_key, encode_varint, encoded_len_varint, WireType};
use prost::Message;
use thalweg_transport::{Error, ErrorKind, Outgoing, Result, SendReport};
use thalweg_wire::{FrameHeader, Kind, HEADER_BYTES};
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::Status;
use tonic_prost::{ProstCodec, ProstDecoder};

/// `thalweg.v1.Parcel` of `proto/thalweg.proto`: the chunks of an update one after the other, each with its
/// header and payload.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Parcel {
    #[prost(bytes = "bytes", tag = "1")]
    pub chunks: Bytes,
}

/// `thalweg.v1.Want`: a client asks for the next update.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Want {
    /// Whether the client has taken the previous update.
    #[prost(bool, tag = "1")]
    pub got: bool,
}

/// `thalweg.v1.Taken`: the server's answer when it has taken an update.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Taken {}

/// Copies the update into one message of at most `largest` bytes.
pub(crate) fn seal(update: &Outgoing, largest: usize) -> Result<Bytes> {
    let chunks = update.payload_bytes() + (HEADER_BYTES * update.chunks().len()) as u64;
    let length = 1 + encoded_len_varint(chunks) as u64 + chunks;
    let fits = usize::try_from(length).ok().filter(|&length| length <= largest);
    let Some(length) = fits else {
        let context = format!("an update of {length} bytes as one message; largest is {largest}");
        return Err(Error::new(ErrorKind::Unsupported, "send update", context)
            .hint("set a higher transport.options.largest at both ends, or mode = \"stream\""));
    };
    let mut message = BytesMut::with_capacity(length);
    encode_key(1, WireType::LengthDelimited, &mut message);
    encode_varint(chunks, &mut message);
    for chunk in update.chunks() {
        let (header, payload) = update.frame(chunk).ok_or_else(SendReport::cancelled)?;
        message.put_slice(&header.encode());
        message.put_slice(&payload);
    }
    Ok(message.freeze())
}

impl Parcel {
    /// Takes the next chunk. `None` after the last one.
    pub(crate) fn next(&mut self) -> Result<Option<(FrameHeader, Bytes)>> {
        if self.chunks.is_empty() {
            return Ok(None);
        }
        let corrupt = |what: String| Err(Error::new(ErrorKind::Corrupt, "receive", what));
        if self.chunks.len() < HEADER_BYTES {
            return corrupt(format!("{} bytes behind the chunks of an update", self.chunks.len()));
        }
        let header = FrameHeader::decode(&self.chunks.split_to(HEADER_BYTES))?;
        if header.kind != Kind::Chunk || header.length() > self.chunks.len() {
            return corrupt(format!("{:?} of {} bytes in an update", header.kind, header.length()));
        }
        Ok(Some((header, self.chunks.split_to(header.length()))))
    }
}

/// A codec that sends messages which are encoded already, and receives `T`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sealed<T>(ProstCodec<Taken, T>);

impl<T: Message + Default + Send + 'static> Codec for Sealed<T> {
    type Encode = Bytes;
    type Decode = T;
    type Encoder = SealedEncoder;
    type Decoder = ProstDecoder<T>;

    fn encoder(&mut self) -> SealedEncoder {
        SealedEncoder
    }

    fn decoder(&mut self) -> ProstDecoder<T> {
        self.0.decoder()
    }
}

/// Copies an encoded message into gRPC's buffer.
pub(crate) struct SealedEncoder;

impl Encoder for SealedEncoder {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> std::result::Result<(), Status> {
        buffer.reserve(item.len());
        buffer.put_slice(&item);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use thalweg_transport::{Cancel, UpdateId};
    use thalweg_wire::{LayoutHash, Ranges};

    use super::*;

    fn update(bytes: usize) -> Outgoing {
        let id = UpdateId { job: 1, round: 2, sender: 3, layout: LayoutHash(4) };
        Outgoing::new(id, Bytes::from(vec![7; bytes]), &Ranges::full(bytes as u64), 64, Cancel::default())
    }

    #[test]
    fn is_protobuf_of_all_chunks() {
        let sealed = seal(&update(150), 1000).unwrap();
        let mut parcel = Parcel::decode(sealed.clone()).unwrap();
        assert_eq!(parcel.encode_to_vec(), sealed);
        let mut seen = Vec::new();
        while let Some((header, payload)) = parcel.next().unwrap() {
            header.verify(&payload).unwrap();
            seen.push((header.chunk.offset, payload.len()));
        }
        assert_eq!(seen, [(0, 64), (64, 64), (128, 22)]);
    }

    #[test]
    fn what_is_too_large_is_refused_before_it_is_copied() {
        let error = seal(&update(1000), 1000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("largest"), "{error}");
    }

    #[test]
    fn a_parcel_that_lies_is_corrupt() {
        let chunks = Parcel::decode(seal(&update(150), 1000).unwrap()).unwrap().chunks;
        let control = FrameHeader::control(b"").encode();
        for bad in [chunks.slice(..100), chunks.slice(1..), Bytes::copy_from_slice(&control)] {
            let mut parcel = Parcel { chunks: bad };
            assert_eq!(parcel.next().unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
