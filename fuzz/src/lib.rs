//! What must hold for any bytes that come from a network. Shared by the libFuzzer targets and by the seeded
//! generator in the tests of `thalweg-wire`.
#![forbid(unsafe_code)]

use thalweg_wire::control::Control;
use thalweg_wire::text::{is_plain, MAX_NAME, MAX_REASON};
use thalweg_wire::tree::{Admit, Answer, Arrival, Request, Statement};
use thalweg_wire::{FrameHeader, Kind, Layout, Range, Ranges, ALIGN, HEADER_BYTES, MAX_CHUNK, MAX_CONTROL};

/// A frame: the header decodes or is refused; a length is within its limit; a control message behind a
/// header that matches is decoded in turn.
pub fn frame_header(bytes: &[u8]) {
    let header = match FrameHeader::decode(bytes) {
        Ok(header) => header,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let limit = if header.kind == Kind::Control { MAX_CONTROL } else { MAX_CHUNK };
    assert!(header.length() <= limit as usize, "a length over the limit");
    assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
    assert!(header.chunk.range().end >= header.chunk.offset);
    let payload = &bytes[HEADER_BYTES..];
    let payload = &payload[..header.length().min(payload.len())];
    if header.verify(payload).is_ok() && header.kind == Kind::Control {
        control(payload);
    }
}

/// A control message decodes to what encodes to it again.
pub fn control(bytes: &[u8]) {
    let Ok(message) = Control::decode(bytes) else { return };
    let Ok(encoded) = message.encode() else {
        return assert!(bytes.len() > MAX_CONTROL as usize, "decoded, but does not encode");
    };
    // Of a reason each character that cannot be shown becomes one of three bytes.
    let told = matches!(message, Control::Refused { .. } | Control::Rejected { .. } | Control::Bye { .. });
    let most = if told { 3 * bytes.len() } else { bytes.len() };
    assert!(encoded.len() <= most, "grew from {} to {} bytes", bytes.len(), encoded.len());
    assert_eq!(Control::decode(&encoded).as_ref(), Ok(&message));
}

/// A layout that decodes is valid: aligned, in order, disjoint, named.
pub fn layout(bytes: &[u8]) {
    let Ok(layout) = postcard::from_bytes::<Layout>(bytes) else { return };
    let mut end = 0;
    for tensor in layout.tensors() {
        assert!(tensor.offset >= end && tensor.offset % ALIGN == 0 && !tensor.name.is_empty());
        assert_eq!(tensor.range().len(), tensor.elements() * tensor.dtype.size());
        end = tensor.range().end;
        let found = layout.overlapping(tensor.range());
        assert!(tensor.range().is_empty() || found.contains(tensor));
    }
    assert_eq!(layout.bytes(), end);
    let encoded = postcard::to_stdvec(&layout).expect("a valid layout encodes");
    let again: Layout = postcard::from_bytes(&encoded).expect("and decodes");
    assert_eq!((again.hash(), again.difference(&layout)), (layout.hash(), None));
}

/// An answer of a node of a tree that is read has names that can be shown, and numbers within bounds.
pub fn tree_answer(bytes: &[u8]) {
    let named = |name: &String| assert!(!name.is_empty() && name.len() <= MAX_NAME && is_plain(name));
    for request in tree_requests() {
        let mut from = serde_json::Deserializer::from_slice(bytes);
        match Answer::read(&request, &mut from) {
            Ok(Answer::State(state)) => state.clients.iter().for_each(named),
            Ok(Answer::Round(answer)) => {
                answer.clients.iter().for_each(named);
                answer.outcome.participants.iter().for_each(|one| named(&one.client));
                let Statement(updates, weight, _) = answer.statement();
                assert!(updates as usize <= answer.outcome.participants.len() && weight >= 0.0);
            }
            Ok(Answer::Arrived(arrivals)) => arrivals.iter().for_each(|Arrival(client, _)| named(client)),
            Ok(Answer::Refusable(why)) => why.iter().for_each(|why| assert!(why.len() <= MAX_REASON)),
            Ok(Answer::Mean(mean)) => assert!(mean.done.is_finite()),
            Ok(Answer::Shared(refused)) => refused.keys().for_each(named),
            Ok(Answer::Delivered(has)) => has.iter().for_each(named),
            Ok(Answer::Nothing) | Err(_) => {}
        }
    }
}

/// A request of each kind of answer.
pub fn tree_requests() -> [Request; 8] {
    let (config, claim) = (String::new(), Statement::default());
    [
        Request::Wait { seconds: 0.0 },
        Request::Round { round: 1, config, kept: false, only: None, batch: None },
        Request::Admit(Admit { round: 1, batch: 1, clients: Vec::new(), last: true, seen: 0, enough: true }),
        Request::BecomeTop { claim },
        Request::SendSums { to: String::new() },
        Request::ComputeMean,
        Request::FoldPart { turn: 1, nodes: [].into(), parts: [].into(), addresses: Vec::new() },
        Request::ConfirmParts,
    ]
}

/// A set of ranges that decodes is in order and counts right; its holes are its complement.
pub fn ranges(bytes: &[u8]) {
    let Ok(set) = postcard::from_bytes::<Ranges>(bytes) else { return };
    let (mut end, mut sum, mut first) = (0, 0_u64, true);
    for range in set.iter() {
        assert!(!range.is_empty() && (first || range.start > end), "{range:?} touches the one before it");
        assert!(set.covers(range));
        (end, first) = (range.end, false);
        sum += range.len();
    }
    assert_eq!((set.bytes(), set.is_empty()), (sum, sum == 0));
    let holes = set.holes(end);
    assert_eq!(holes.bytes() + sum, end);
    let mut all = set.clone();
    holes.iter().for_each(|hole| assert_eq!(all.insert(hole), [hole]));
    assert!(all.covers(Range::new(0, end)));
    let encoded = postcard::to_stdvec(&set).expect("a set encodes");
    assert_eq!(postcard::from_bytes(&encoded), Ok(set));
}
