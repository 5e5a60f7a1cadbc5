//! Body of `POST /v1/kv-events`: batches of engines without ZeroMQ, in words of our own. Pure: JSON in, [`Push`] out, every fault at
//! once with its path.
//!
//! ```json
//! {"worker": "w0", "rank": 0, "seq": 17, "events": [
//!   {"type": "removed", "hashes": ["00c0ffee00000001"], "tier": "gpu"},
//!   {"type": "stored", "hashes": [17], "parent": 16, "tokens": [1, 2, 3, 4], "block_size": 4,
//!    "tier": "gpu", "lora": null, "salt": null, "extra": 0, "group": 0},
//!   {"type": "cleared"}]}
//! ```
//! `seq` counts a rank's batches from 0; numbers that go backwards are a new life, a number left out clears the rank, as nothing can be
//! replayed. A hash is a whole number, or hex digits of which the low 64 bits count.

use crate::declare::{self, Faults, Fields, NAME_ALLOWED};
use crate::state::kv_event::{EngineHash, KvBatch, KvEvent, Tier};
use crate::state::kv_stream::Frame;
use routing::id::WorkerId;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

/// Most events of one body.
pub const EVENTS_MAX: usize = 65_536;
/// Most blocks, and most tokens, of one event.
pub const BLOCKS_MAX: usize = 65_536;
/// See [`BLOCKS_MAX`].
pub const TOKENS_MAX: usize = 1 << 20;
/// Longest adapter's name and salt, in bytes.
const TEXT_BYTES_MAX: usize = 256;
const HASH_ALLOWED: &str = "a whole number, or 1..=64 hex digits in quotes";
const TIERS: &[(&str, Tier); 3] = &[("gpu", Tier::Gpu), ("host", Tier::Host), ("disk", Tier::Disk)];

/// A batch that was pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// Whose.
    pub worker: WorkerId,
    /// Its global rank.
    pub rank: u32,
    /// The batch with its number.
    pub frame: Frame,
}

#[derive(Clone, Copy)]
enum Type {
    Stored,
    Removed,
    Cleared,
}

const TYPES: &[(&str, Type); 3] =
    &[("stored", Type::Stored), ("removed", Type::Removed), ("cleared", Type::Cleared)];

/// Reads one body.
///
/// # Errors
/// [`Faults`]: everything wrong with it; nothing of it is applied.
pub fn parse(body: &[u8]) -> Result<Push, Faults> {
    let mut faults = Faults::default();
    let value = declare::document(body, &mut faults);
    let push = value.and_then(|value| push(&value, xxh3_64(body), &mut faults));
    faults.or(push)
}

fn push(value: &Value, stamp: u64, faults: &mut Faults) -> Option<Push> {
    let mut fields = Fields::open("", value, faults)?;
    let worker = fields.required(faults, "worker", NAME_ALLOWED, WorkerId::parse);
    let rank = fields.optional_number(faults, "rank", 0..=u32::MAX).unwrap_or(0);
    let seq = seq(&mut fields, faults);
    let mut events = Vec::new();
    for (i, value) in fields.list(faults, "events", 0, EVENTS_MAX).iter().enumerate() {
        events.extend(event(value, &format!("events[{i}]"), faults));
    }
    fields.close(faults);
    events.dedup_by(|later, earlier| *later == KvEvent::Cleared && *earlier == KvEvent::Cleared);
    Some(Push { worker: worker?, rank, frame: Frame { seq: seq?, stamp, batch: KvBatch { events } } })
}

fn seq(fields: &mut Fields<'_>, faults: &mut Faults) -> Option<u64> {
    let seq = fields.take("seq").and_then(Value::as_u64);
    if seq.is_none() {
        faults.add(
            "seq",
            "is missing, or no number".to_owned(),
            "a whole number, 0 for a rank's first batch",
        );
    }
    seq
}

fn event(value: &Value, path: &str, faults: &mut Faults) -> Option<KvEvent> {
    let mut fields = Fields::open(path, value, faults)?;
    let kind =
        fields.choice_or(faults, "type", TYPES.map(|(word, kind)| (word, Some(kind))).as_slice(), None);
    if kind.is_none() && value.get("type").is_none_or(Value::is_null) {
        faults.add(&fields.at("type"), "is missing".to_owned(), "stored, removed, cleared");
    }
    let event = match kind? {
        Type::Cleared => Some(KvEvent::Cleared),
        Type::Removed => removed(&mut fields, faults),
        Type::Stored => stored(&mut fields, faults),
    };
    fields.close(faults);
    event
}

fn removed(fields: &mut Fields<'_>, faults: &mut Faults) -> Option<KvEvent> {
    let hashes = hashes(fields, faults);
    let tier = fields.choice_or(faults, "tier", TIERS, Tier::Gpu);
    let group = fields.optional_number(faults, "group", 0..=u32::MAX).unwrap_or(0);
    Some(KvEvent::Removed { hashes: hashes?, tier, group })
}

fn stored(fields: &mut Fields<'_>, faults: &mut Faults) -> Option<KvEvent> {
    let hashes = hashes(fields, faults);
    let parent = fields.take("parent").map(|value| hash(value, &fields.at("parent"), faults));
    let tokens = tokens(fields, faults);
    let given = fields.take("block_size").is_some();
    let block_size = fields.optional_number(faults, "block_size", 1..=u32::MAX);
    if !given {
        faults.add(&fields.at("block_size"), "is missing".to_owned(), "tokens of a block");
    }
    if let (Some(hashes), Some(tokens), Some(size)) = (&hashes, &tokens, block_size)
        && hashes.len().checked_mul(size as usize) != Some(tokens.len())
    {
        let problem = format!("has {} entries", tokens.len());
        faults.add(
            &fields.at("tokens"),
            problem,
            "block_size tokens for each hash: a last block that is not full is left out",
        );
    }
    let tier = fields.choice_or(faults, "tier", TIERS, Tier::Gpu);
    let lora = fields.short_text(faults, "lora", TEXT_BYTES_MAX).map(Box::from);
    let salt = fields.short_text(faults, "salt", TEXT_BYTES_MAX).map(Box::from);
    let extra =
        fields.take("extra").map_or(Some(EngineHash(0)), |value| hash(value, &fields.at("extra"), faults));
    let group = fields.optional_number(faults, "group", 0..=u32::MAX).unwrap_or(0);
    Some(KvEvent::Stored {
        hashes: hashes?,
        // A parent that could not be read is a fault, and the body is refused.
        parent: parent.flatten(),
        tokens: tokens?,
        block_size: block_size?,
        tier,
        lora,
        salt,
        extra: extra?.0,
        group,
        kind_ok: true,
    })
}

fn hashes(fields: &mut Fields<'_>, faults: &mut Faults) -> Option<Vec<EngineHash>> {
    let at = fields.at("hashes");
    let values = fields.list(faults, "hashes", 1, BLOCKS_MAX);
    let each = values.iter().enumerate().map(|(i, value)| hash(value, &format!("{at}[{i}]"), faults));
    each.collect()
}

fn hash(value: &Value, path: &str, faults: &mut Faults) -> Option<EngineHash> {
    let hash = match value {
        Value::Number(number) => number.as_u64().or_else(|| number.as_i64().map(i64::cast_unsigned)),
        Value::String(text) => low_bits(text),
        _ => None,
    };
    if hash.is_none() {
        faults.add(path, "is no hash".to_owned(), HASH_ALLOWED);
    }
    hash.map(EngineHash)
}

/// The low 64 bits of 1..=64 hex digits.
pub(super) fn low_bits(hex: &str) -> Option<u64> {
    let digits = hex.strip_prefix("0x").unwrap_or(hex);
    let whole = (1..=64).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let low = digits.get(digits.len().saturating_sub(16)..).filter(|_| whole)?;
    u64::from_str_radix(low, 16).ok()
}

fn tokens(fields: &mut Fields<'_>, faults: &mut Faults) -> Option<Vec<u32>> {
    let at = fields.at("tokens");
    let values = fields.list(faults, "tokens", 1, TOKENS_MAX);
    let mut tokens = Vec::with_capacity(values.len());
    for (i, value) in values.iter().enumerate() {
        let Some(token) = value.as_u64().and_then(|token| u32::try_from(token).ok()) else {
            faults.add(&format!("{at}[{i}]"), "is no token id".to_owned(), "whole numbers in 0..=4294967295");
            return None;
        };
        tokens.push(token);
    }
    Some(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: &Value) -> Result<Push, String> {
        parse(value.to_string().as_bytes()).map_err(|faults| faults.to_string())
    }

    #[test]
    fn every_event_is_read() {
        let push = read(&json!({"worker": "w0", "rank": 3, "seq": 17, "events": [
            {"type": "removed", "hashes": ["00C0ffee00000001", -1], "tier": "host"},
            {"type": "stored", "hashes": [17], "parent": "ffff0000000000000010", "tokens": [1, 2, 3, 4], "block_size": 4,
             "lora": "l", "salt": "s", "extra": 9, "group": 1},
            {"type": "cleared"}]}))
        .unwrap();
        assert_eq!((push.worker.as_str(), push.rank, push.frame.seq), ("w0", 3, 17));
        let hashes = |list: &[u64]| list.iter().copied().map(EngineHash).collect::<Vec<_>>();
        assert_eq!(
            push.frame.batch.events,
            [
                KvEvent::Removed {
                    hashes: hashes(&[0xc0_ffee_0000_0001, u64::MAX]),
                    tier: Tier::Host,
                    group: 0
                },
                KvEvent::Stored {
                    hashes: hashes(&[17]),
                    parent: Some(EngineHash(16)),
                    tokens: vec![1, 2, 3, 4],
                    block_size: 4,
                    tier: Tier::Gpu,
                    lora: Some("l".into()),
                    salt: Some("s".into()),
                    extra: 9,
                    group: 1,
                    kind_ok: true,
                },
                KvEvent::Cleared,
            ]
        );
    }

    #[test]
    fn every_fault_is_told_with_its_path() {
        let told = read(&json!({"worker": "a b", "rank": -1, "colour": 1, "events": [
            {"type": "moved"}, {}, 7,
            {"type": "removed", "hashes": []},
            {"type": "stored", "hashes": [1.5, "x"], "parent": [], "tokens": ["a", "b"], "block_size": 0, "tier": "tape"}]}))
        .expect_err("accepted");
        for path in [
            "worker: ",
            "rank: ",
            "seq: ",
            "colour: unknown",
            "events[0].type: ",
            "events[1].type: is missing",
            "events[2]: ",
            "events[3].hashes: has 0",
            "events[4].hashes[0]: ",
            "events[4].parent: ",
            "events[4].tokens[0]: ",
            "events[4].block_size: ",
            "events[4].tier: ",
        ] {
            assert!(told.lines().any(|line| line.starts_with(path)), "{path} is missing in\n{told}");
        }
        // One of a list is enough: a body of texts would be a million faults.
        assert!(!told.contains("tokens[1]") && !told.contains("hashes[1]"));
        assert_eq!(told.matches("block_size").count(), 1);
    }

    #[test]
    fn tokens_are_so_many_as_their_blocks_hold() {
        let stored = |tokens: Value| {
            read(&json!({"worker": "w0", "seq": 0, "events": [
                {"type": "cleared"}, {"type": "stored", "hashes": [1, 2], "tokens": tokens, "block_size": 2}]}))
        };
        assert!(stored(json!([1, 2, 3, 4])).is_ok());
        for wrong in [json!([1, 2, 3]), json!([1, 2, 3, 4, 5])] {
            let told = stored(wrong).expect_err("accepted");
            assert!(told.starts_with("events[1].tokens: has "), "{told}");
        }
    }

    #[test]
    fn hex_digits_count_by_their_low_bits() {
        for (hex, bits) in
            [("0x10", Some(16)), ("f", Some(15)), ("", None), ("g", None), ("0x", None), ("+1", None)]
        {
            assert_eq!(low_bits(hex), bits, "{hex}");
        }
        assert_eq!(low_bits(&format!("{}1", "f".repeat(48))), Some(0xffff_ffff_ffff_fff1));
        assert_eq!(low_bits(&"f".repeat(65)), None);
    }
}
