//! A binding as the store keeps it: one line of text whose compared part is of fixed width, so that the greater text is the newer
//! state, byte by byte. Owns the way there and back, trusting nothing that comes back. Knows no connection.
//!
//! `seq 16 · writer 16 · place 1 (b bound, r released) · worker's hash 16 · rank 8 (ffffffff none) · deadline 16 | rank hash 16 |
//! generation 16 | worker`, hexadecimal in lower case. The deadline is in ms of the *store's* clock and never leaves this room.

use crate::state::Binding;
use routing::contract::{SessionRef, Target};
use routing::hash::worker_hash;
use routing::id::{Rank, RankHash, SessionId, Version, WorkerId};
use routing::time::Millis;

/// Length of a text without its deadline, if its worker has the longest name.
const TEXT_MOST: usize = 92 + 63;
/// Length of everything before the deadline.
const BEFORE_DEADLINE: usize = 57;
/// No binding lives longer; a longer time is cut to this: 366 days.
pub const EXPIRES_MAX: Millis = Millis(366 * 86_400_000);
const NO_RANK: u32 = u32::MAX;

/// A binding without its deadline, as scripts take it; they put it in, by their own clock.
#[must_use]
pub fn without_deadline(binding: &Binding) -> String {
    let Binding { session, version, target, generation, .. } = binding;
    let (place, hash, rank, worker) = match target {
        Some(Target { worker, rank }) => {
            ('b', worker_hash(worker), rank.map_or(NO_RANK, |rank| rank.0), worker.as_str())
        }
        None => ('r', 0, 0, ""),
    };
    let mut text = String::with_capacity(TEXT_MOST);
    push_hex(&mut text, version.seq, 16);
    push_hex(&mut text, version.writer, 16);
    text.push(place);
    push_hex(&mut text, hash, 16);
    push_hex(&mut text, rank.into(), 8);
    for number in [session.rank_hash.0, *generation] {
        text.push('|');
        push_hex(&mut text, number, 16);
    }
    text.push('|');
    text.push_str(worker);
    text
}

/// Digits of fixed number: formatting them would cost more than everything else that is done with a binding here.
pub(super) fn push_hex(text: &mut String, number: u64, digits: u32) {
    let digit = |nth: u32| char::from_digit(u32::try_from((number >> (4 * nth)) & 15).unwrap_or(0), 16);
    text.extend((0..digits).rev().filter_map(digit));
}

/// A version as it begins such a text.
#[must_use]
pub fn version(version: Version) -> String {
    let Version { seq, writer } = version;
    format!("{seq:016x}{writer:016x}")
}

/// The text with its deadline, as the store keeps it.
#[must_use]
pub fn with_deadline(binding: &Binding, deadline: u64) -> String {
    let text = without_deadline(binding);
    let (head, rest) = text.split_at_checked(BEFORE_DEADLINE).unwrap_or((&text, ""));
    format!("{head}{deadline:016x}{rest}")
}

/// Reads what the store has about a session at a moment of its clock; nothing where it is not a text of ours.
#[must_use]
pub fn read(session: SessionId, text: &str, now: u64) -> Option<Binding> {
    let mut rest = text;
    let version = Version { seq: hex64(&mut rest)?, writer: hex64(&mut rest)? };
    let place = take(&mut rest, 1)?;
    let (hash, rank) = (hex64(&mut rest)?, hex(take(&mut rest, 8)?)?);
    let deadline = hex64(&mut rest)?;
    let mut parts = rest.strip_prefix('|')?.splitn(3, '|');
    let (rank_hash, generation, worker) = (whole64(parts.next()?)?, whole64(parts.next()?)?, parts.next()?);
    let target = match (place, worker) {
        ("r", "") if hash == 0 && rank == 0 => None,
        ("b", worker) => Some(target(worker, hash, u32::try_from(rank).ok()?)?),
        _ => return None,
    };
    let session = SessionRef { id: session, rank_hash: RankHash(rank_hash) };
    let expires_in_ms = Millis(deadline.saturating_sub(now)).min(EXPIRES_MAX);
    Some(Binding { session, version, target, expires_in_ms, generation })
}

/// A line of the log: the session's id and its text.
#[must_use]
pub fn read_line(line: &str, now: u64) -> Option<Binding> {
    let (id, text) = line.split_once(' ')?;
    let (mut rest, whole) = (id, id.len() == 32);
    let (high, low) = (hex64(&mut rest)?, hex64(&mut rest)?);
    whole.then_some(())?;
    read(SessionId(u128::from(high) << 64 | u128::from(low)), text, now)
}

fn target(worker: &str, hash: u64, rank: u32) -> Option<Target> {
    let worker = WorkerId::parse(worker).ok().filter(|id| worker_hash(id) == hash)?;
    Some(Target { worker, rank: (rank != NO_RANK).then_some(Rank(rank)) })
}

fn take<'a>(rest: &mut &'a str, bytes: usize) -> Option<&'a str> {
    let (part, after) = rest.split_at_checked(bytes)?;
    *rest = after;
    Some(part)
}

fn hex64(rest: &mut &str) -> Option<u64> {
    hex(take(rest, 16)?)
}

fn whole64(text: &str) -> Option<u64> {
    if text.len() == 16 { hex(text) } else { None }
}

/// Digits as we write them, 16 at most: one number has one text.
fn hex(text: &str) -> Option<u64> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    text.bytes().try_fold(0, |number, byte| Some((number << 4) | u64::from(digit(byte)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_binding() -> impl Strategy<Value = Binding> {
        let place = proptest::option::of(("[a-zA-Z0-9._-]{1,63}", proptest::option::of(0..NO_RANK)));
        (any::<(u128, u64, u64, u64, u64)>(), place, 0..EXPIRES_MAX.0).prop_map(|(numbers, place, ms)| {
            let (id, rank_hash, seq, writer, generation) = numbers;
            let target = place.map(|(worker, rank)| Target {
                worker: WorkerId::parse(&worker).unwrap(),
                rank: rank.map(Rank),
            });
            Binding {
                session: SessionRef { id: SessionId(id), rank_hash: RankHash(rank_hash) },
                version: Version { seq, writer },
                target,
                expires_in_ms: Millis(ms),
                generation,
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(binding in any_binding(), now in 0..1_u64 << 42) {
            let text = with_deadline(&binding, now + binding.expires_in_ms.0);
            prop_assert_eq!(read(binding.session.id, &text, now), Some(binding));
        }

        #[test]
        fn no_text_is_a_panic(text in any::<String>()) {
            let _ = read(SessionId(1), &text, 0);
            let _ = read_line(&text, 0);
        }

        #[test]
        fn a_text_with_a_byte_changed_is_read_otherwise_or_not_at_all(binding in any_binding(), at in 0..108_usize, byte in 32..127_u8) {
            let text = with_deadline(&binding, binding.expires_in_ms.0);
            let mut changed = text.clone().into_bytes();
            changed[at] = byte;
            let changed = String::from_utf8(changed).unwrap();
            let seen = read(binding.session.id, &changed, 0);
            prop_assert!(changed == text || seen != Some(binding));
        }

        #[test]
        fn the_greater_text_is_the_newer_state(a in any_binding(), b in any_binding()) {
            let key = |of: &Binding| (of.version, of.target.is_none());
            let (x, y) = (with_deadline(&a, a.expires_in_ms.0), with_deadline(&b, b.expires_in_ms.0));
            prop_assert!(key(&a) == key(&b) || (key(&a) > key(&b)) == (x > y));
        }
    }
}
