//! Multipart messages of publishers and replay sockets, taken apart. Knows where number and payload stand, not what a payload says.

use bytes::Bytes;

/// What marks the end of a replay where a number would stand.
const END: [u8; 8] = [0xff; 8];

/// A number and its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// The batch's number.
    pub seq: u64,
    /// msgpack.
    pub payload: Bytes,
}

/// One message of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A batch.
    Batch(Numbered),
    /// There are no more.
    End,
}

/// A live message: `topic | number | payload`. `None`: it is none.
#[must_use]
pub fn live(frames: &[Bytes]) -> Option<Numbered> {
    let [_topic, seq, payload] = frames else { return None };
    numbered(seq, payload)
}

/// A message of a replay, as a DEALER gets it: an empty frame, from vLLM 0.26 and SGLang 0.5.22 on the topic, then number and
/// payload. `None`: it is neither a batch nor the end.
#[must_use]
pub fn answer(frames: &[Bytes]) -> Option<Answer> {
    if frames.iter().any(|frame| frame[..] == END) {
        return Some(Answer::End);
    }
    match frames {
        [empty, seq, payload] | [empty, _, seq, payload] if empty.is_empty() => {
            numbered(seq, payload).map(Answer::Batch)
        }
        _ => None,
    }
}

fn numbered(seq: &Bytes, payload: &Bytes) -> Option<Numbered> {
    let seq = u64::from_be_bytes(seq[..].try_into().ok()?);
    Some(Numbered { seq, payload: payload.clone() })
}
