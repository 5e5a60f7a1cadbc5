//! A second decoder, slow and plain: `rmpv` makes a tree of a payload, and this reads events out of it. It shares no line with the
//! one under test. For payloads that are well formed; what both leave out is compared, too.

use rmpv::Value;
use state_service::state::kv_event::{EngineHash, KvEvent, Tier};

/// The events of a payload, `None` for each that is left out. Stores are not split by their extra keys: see [`flat`].
pub(crate) fn events(payload: &[u8]) -> Option<Vec<Option<KvEvent>>> {
    let mut rest = payload;
    let Value::Array(envelope) = rmpv::decode::read_value(&mut rest).ok()? else { return None };
    if !(envelope.first()?.is_number() || envelope.first()?.is_nil()) {
        return None;
    }
    match envelope.get(1)? {
        Value::Array(events) => Some(events.iter().map(event).collect()),
        Value::Nil => Some(Vec::new()),
        _ => None,
    }
}

const STORED: [&str; 10] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
];

fn event(value: &Value) -> Option<KvEvent> {
    let fields = match value {
        Value::Map(fields) => {
            fields.iter().map(|(k, v)| (k.as_str().unwrap_or("").to_owned(), v.clone())).collect()
        }
        Value::Array(list) => positional(list),
        _ => return None,
    };
    if !fields.iter().all(|(name, value)| is_well_formed(name, value)) {
        return None;
    }
    let field = |name: &str| fields.iter().find(|(k, v)| k == name && !v.is_nil()).map(|(_, v)| v);
    let text = |name: &str| {
        field(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(Box::<str>::from)
    };
    match field("type")?.as_str()? {
        "AllBlocksCleared" => Some(KvEvent::Cleared),
        "BlockRemoved" => Some(KvEvent::Removed {
            hashes: hashes(field("block_hashes")?)?,
            tier: tier(field("medium"), field("locality"))?,
            group: number(field("group_idx"))?,
        }),
        "BlockStored" => {
            let misplaced =
                field("lora_name").filter(|v| v.is_map()).and_then(|map| map["cache_salt"].as_str());
            let parent = field("parent_block_hash");
            are_keys(field("extra_keys"))?;
            are_keys(field("mm_keys"))?;
            Some(KvEvent::Stored {
                hashes: hashes(field("block_hashes")?)?,
                parent: match parent {
                    Some(parent) => Some(hash(parent)?),
                    None => None,
                },
                tokens: tokens(field("token_ids")?)?,
                block_size: number(Some(field("block_size")?))?,
                tier: tier(field("medium"), field("locality"))?,
                lora: text("lora_name"),
                salt: text("cache_salt").or(misplaced.map(Box::from)).or_else(|| salt(&fields)),
                extra: 0,
                group: number(field("group_idx"))?,
                kind_ok: text("kv_cache_spec_kind").is_none_or(|kind| {
                    matches!(&*kind, "full_attention" | "mla_attention" | "sink_full_attention")
                }),
            })
        }
        _ => None,
    }
}

/// A field of another type than it has makes its event unreadable, whatever the event is.
fn is_well_formed(name: &str, value: &Value) -> bool {
    match name {
        "block_hashes" => value.as_array().is_some_and(|list| list.iter().all(|value| hash(value).is_some())),
        "parent_block_hash" => value.is_nil() || hash(value).is_some(),
        "token_ids" => value.is_array(),
        "block_size" => number(Some(value)).is_some(),
        "group_idx" => value.is_nil() || number(Some(value)).is_some(),
        "lora_name" => match value {
            Value::Map(fields) => fields.iter().all(|(name, value)| {
                name.as_str().is_some_and(|name| name != "cache_salt" || value.is_nil() || value.is_str())
            }),
            value => value.is_nil() || value.is_str(),
        },
        "medium" | "kv_cache_spec_kind" | "cache_salt" | "locality" => value.is_nil() || value.is_str(),
        _ => true,
    }
}

/// Keys are lists for each block, or nothing.
fn are_keys(value: Option<&Value>) -> Option<()> {
    let list = |value: &Value| value.is_nil() || value.is_array();
    value.is_none_or(|value| value.as_array().is_some_and(|lists| lists.iter().all(list))).then_some(())
}

fn positional(list: &[Value]) -> Vec<(String, Value)> {
    let tag = list.first().cloned().unwrap_or(Value::Nil);
    let names: &[&str] = match tag.as_str() {
        Some("BlockStored") => &STORED,
        Some("BlockRemoved") => &["block_hashes", "medium", "group_idx"],
        _ => &[],
    };
    let rest = names.iter().zip(list.iter().skip(1)).map(|(name, value)| ((*name).to_owned(), value.clone()));
    std::iter::once(("type".to_owned(), tag)).chain(rest).collect()
}

/// The last text among a first block's keys that is not the adapter's name.
fn salt(fields: &[(String, Value)]) -> Option<Box<str>> {
    let field = |name: &str| fields.iter().find(|(k, v)| k == name && !v.is_nil()).map(|(_, v)| v);
    if field("parent_block_hash").is_some() {
        return None;
    }
    let keys = field("extra_keys")?.as_array()?.first()?.as_array()?;
    let lora = field("lora_name").and_then(Value::as_str);
    keys.iter().filter_map(Value::as_str).rfind(|key| Some(*key) != lora).map(Box::from)
}

fn hashes(value: &Value) -> Option<Vec<EngineHash>> {
    value.as_array()?.iter().map(hash).collect::<Option<Vec<_>>>().filter(|hashes| !hashes.is_empty())
}

fn hash(value: &Value) -> Option<EngineHash> {
    match value {
        Value::Binary(bytes) => {
            Some(EngineHash(u64::from_be_bytes(bytes[bytes.len().checked_sub(8)?..].try_into().ok()?)))
        }
        Value::Integer(n) => Some(EngineHash(n.as_u64().or_else(|| n.as_i64().map(|n| n as u64))?)),
        _ => None,
    }
}

fn tokens(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|token| u32::try_from(token.as_u64()?).ok()).collect()
}

fn number(value: Option<&Value>) -> Option<u32> {
    value.map_or(Some(0), |value| u32::try_from(value.as_u64()?).ok())
}

fn tier(medium: Option<&Value>, locality: Option<&Value>) -> Option<Tier> {
    if locality.and_then(Value::as_str) == Some("REMOTE") {
        return Some(Tier::Disk);
    }
    match medium.map(|medium| medium.as_str().unwrap_or("?").to_uppercase()).as_deref() {
        None | Some("GPU") => Some(Tier::Gpu),
        Some("CPU" | "CPU_PINNED") => Some(Tier::Host),
        Some("DISK" | "STORAGE" | "EXTERNAL") => Some(Tier::Disk),
        Some(_) => None,
    }
}

/// Joins what was split by extra keys, so that both decoders can be compared: parts follow each other and name the one before. Clears in
/// a row are one.
pub(crate) fn flat(events: Vec<KvEvent>) -> Vec<KvEvent> {
    let mut joined: Vec<KvEvent> = Vec::new();
    for event in events {
        let part = matches!((joined.last(), &event), (
            Some(KvEvent::Stored { hashes, extra: before, .. }),
            KvEvent::Stored { parent: Some(parent), extra, .. },
        ) if hashes.last() == Some(parent) && (before | extra) != 0);
        match (joined.last_mut(), event) {
            (
                Some(KvEvent::Stored { hashes, tokens, extra, .. }),
                KvEvent::Stored { hashes: more, tokens: more_tokens, extra: more_extra, .. },
            ) if part => {
                hashes.extend(more);
                tokens.extend(more_tokens);
                *extra |= more_extra;
            }
            (Some(KvEvent::Cleared), KvEvent::Cleared) => {}
            (_, event) => joined.push(event),
        }
    }
    for event in &mut joined {
        if let KvEvent::Stored { extra, .. } = event {
            *extra = 0;
        }
    }
    joined
}
