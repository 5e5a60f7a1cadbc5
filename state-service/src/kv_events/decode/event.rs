//! One event of a batch: positional array (vLLM ≤ 0.23, SGLang ≤ 0.5.19) or map, the same fields either way. Fields that are missing
//! have their default, fields that are not known are stepped over.

use super::extras::{self, Keys};
use crate::kv_events::msgpack::{Reader, Unreadable};
use crate::kv_events::skips::Skips;
use crate::state::kv_event::{EngineHash, KvEvent, Tier};

/// Cache kinds that keep every block of a prefix, so that a longest prefix can be looked for; vLLM's `KVCacheSpecKind`. Blocks of
/// the others (windows, Mamba, cross attention) come and go by rules of their own.
const KINDS_SCORED: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];

/// Fields of a positional `BlockStored`, after its tag.
const STORED: [Field; 10] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::Other,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::Group,
    Field::Kind,
];
/// Fields of a positional `BlockRemoved`, after its tag.
const REMOVED: [Field; 3] = [Field::Hashes, Field::Medium, Field::Group];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Type,
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    Medium,
    LoraName,
    ExtraKeys,
    MmKeys,
    Group,
    Kind,
    Salt,
    Locality,
    Other,
}

impl Field {
    fn named(name: &str) -> Self {
        match name {
            "type" => Self::Type,
            "block_hashes" => Self::Hashes,
            "parent_block_hash" => Self::Parent,
            "token_ids" => Self::Tokens,
            "block_size" => Self::BlockSize,
            "medium" => Self::Medium,
            "lora_name" => Self::LoraName,
            "extra_keys" => Self::ExtraKeys,
            "mm_keys" => Self::MmKeys,
            "group_idx" => Self::Group,
            "kv_cache_spec_kind" => Self::Kind,
            "cache_salt" => Self::Salt,
            "locality" => Self::Locality,
            _ => Self::Other,
        }
    }
}

/// Why an event was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    UnknownType,
    Malformed,
    NotIndexable,
    UnknownTier,
    Empty,
}

impl From<Unreadable> for Left {
    fn from(_: Unreadable) -> Self {
        Self::Malformed
    }
}

/// An event's fields as they stand.
#[derive(Debug, Default)]
pub(super) struct Raw<'a> {
    tag: Option<&'a str>,
    pub(super) hashes: Option<Vec<EngineHash>>,
    pub(super) parent: Option<EngineHash>,
    pub(super) tokens: Option<Vec<u32>>,
    /// The tokens are something else than token ids.
    odd_tokens: bool,
    pub(super) block_size: Option<u32>,
    medium: Option<&'a str>,
    pub(super) lora: Option<&'a str>,
    pub(super) salt: Option<&'a str>,
    pub(super) keys: Keys<'a>,
    group: Option<u32>,
    kind: Option<&'a str>,
    remote: bool,
}

/// Reads the next event into `out`. False when the bytes cannot even be stepped over: nothing after them can be found.
pub(super) fn read(reader: &mut Reader<'_>, out: &mut Vec<KvEvent>, skips: &mut Skips) -> bool {
    let start = *reader;
    let mut raw = Raw::default();
    let left = fields(reader, &mut raw).map_err(Left::from).and_then(|()| event(&mut raw, out)).err();
    let Some(left) = left else { return true };
    *reader = start;
    if reader.skip().is_err() {
        return false;
    }
    if left == Left::Malformed && takes_away(start) {
        skips.unreadable_removal += 1;
        out.push(KvEvent::Cleared);
    } else {
        count(left, skips);
    }
    true
}

const fn count(left: Left, skips: &mut Skips) {
    match left {
        Left::UnknownType => skips.unknown_type += 1,
        Left::Malformed => skips.malformed += 1,
        Left::NotIndexable => skips.not_indexable += 1,
        Left::UnknownTier => skips.unknown_tier += 1,
        Left::Empty => skips.empty += 1,
    }
}

fn fields<'a>(reader: &mut Reader<'a>, raw: &mut Raw<'a>) -> Result<(), Unreadable> {
    match reader.peek()? {
        0x90..=0x9f | 0xdc | 0xdd => positional(reader, raw),
        _ => named(reader, raw),
    }
}

fn positional<'a>(reader: &mut Reader<'a>, raw: &mut Raw<'a>) -> Result<(), Unreadable> {
    let count = reader.array()?;
    if count == 0 {
        return Ok(());
    }
    let tag = reader.text()?;
    raw.tag = Some(tag);
    let known: &[Field] = match tag {
        "BlockStored" => &STORED,
        "BlockRemoved" => &REMOVED,
        _ => &[],
    };
    for place in 0..count - 1 {
        let field = known.get(place).copied().unwrap_or(Field::Other);
        value(reader, raw, field)?;
    }
    Ok(())
}

fn named<'a>(reader: &mut Reader<'a>, raw: &mut Raw<'a>) -> Result<(), Unreadable> {
    for _ in 0..reader.map()? {
        let field = Field::named(reader.text()?);
        value(reader, raw, field)?;
    }
    Ok(())
}

fn value<'a>(reader: &mut Reader<'a>, raw: &mut Raw<'a>, field: Field) -> Result<(), Unreadable> {
    match field {
        Field::Type => raw.tag = Some(reader.text()?),
        Field::Hashes => raw.hashes = Some(hashes(reader)?),
        Field::Parent => raw.parent = if reader.nil() { None } else { Some(hash(reader)?) },
        Field::Tokens => tokens(reader, raw)?,
        Field::BlockSize => raw.block_size = Some(reader.u32()?),
        Field::Medium => raw.medium = reader.text_or_nil()?,
        Field::LoraName => lora_name(reader, raw)?,
        Field::ExtraKeys => raw.keys.extra = kept(reader)?,
        Field::MmKeys => raw.keys.mm = kept(reader)?,
        Field::Group => raw.group = if reader.nil() { None } else { Some(reader.u32()?) },
        Field::Kind => raw.kind = reader.text_or_nil()?,
        Field::Salt => raw.salt = reader.text_or_nil()?,
        Field::Locality => raw.remote = reader.text_or_nil()? == Some("REMOTE"),
        Field::Other => reader.skip()?,
    }
    Ok(())
}

/// A value to be read later, when the rest of the event is known.
fn kept<'a>(reader: &mut Reader<'a>) -> Result<Option<Reader<'a>>, Unreadable> {
    if reader.nil() {
        return Ok(None);
    }
    let start = *reader;
    reader.skip().map(|()| Some(start))
}

fn hashes(reader: &mut Reader<'_>) -> Result<Vec<EngineHash>, Unreadable> {
    let count = reader.array()?;
    let mut hashes = Vec::with_capacity(count);
    for _ in 0..count {
        hashes.push(hash(reader)?);
    }
    Ok(hashes)
}

/// Of a long hash the last eight bytes, as vLLM itself shortens them.
fn hash(reader: &mut Reader<'_>) -> Result<EngineHash, Unreadable> {
    if !matches!(reader.peek()?, 0xc4..=0xc6) {
        return reader.bits().map(EngineHash);
    }
    let bytes = reader.bin()?;
    let low = bytes.last_chunk::<8>().map(|low| u64::from_be_bytes(*low));
    low.map(EngineHash).ok_or(Unreadable)
}

fn tokens(reader: &mut Reader<'_>, raw: &mut Raw<'_>) -> Result<(), Unreadable> {
    let start = *reader;
    let count = reader.array()?;
    let mut tokens = Vec::with_capacity(count);
    for _ in 0..count {
        let Ok(token) = reader.u32() else {
            raw.odd_tokens = true;
            *reader = start;
            return reader.skip();
        };
        tokens.push(token);
    }
    raw.tokens = Some(tokens);
    Ok(())
}

/// SGLang 0.5.18 and 0.5.19 put `{"cache_salt": …}` where vLLM has the adapter's name.
fn lora_name<'a>(reader: &mut Reader<'a>, raw: &mut Raw<'a>) -> Result<(), Unreadable> {
    if !matches!(reader.peek()?, 0x80..=0x8f | 0xde | 0xdf) {
        raw.lora = reader.text_or_nil()?;
        return Ok(());
    }
    for _ in 0..reader.map()? {
        if reader.text()? == "cache_salt" {
            raw.salt = reader.text_or_nil()?;
        } else {
            reader.skip()?;
        }
    }
    Ok(())
}

fn event(raw: &mut Raw<'_>, out: &mut Vec<KvEvent>) -> Result<(), Left> {
    match raw.tag {
        Some("BlockStored") => stored(raw, out),
        Some("BlockRemoved") => removed(raw, out),
        Some("AllBlocksCleared") => {
            out.push(KvEvent::Cleared);
            Ok(())
        }
        Some(_) => Err(Left::UnknownType),
        None => Err(Left::Malformed),
    }
}

fn stored(raw: &mut Raw<'_>, out: &mut Vec<KvEvent>) -> Result<(), Left> {
    if raw.odd_tokens {
        return Err(Left::NotIndexable);
    }
    let tier = tier(raw)?;
    let hashes = raw.hashes.take().ok_or(Left::Malformed)?;
    let tokens = raw.tokens.take().ok_or(Left::Malformed)?;
    let block_size = raw.block_size.ok_or(Left::Malformed)?;
    if hashes.is_empty() {
        return Err(Left::Empty);
    }
    let keys = extras::of_blocks(raw, hashes.len())?;
    let text = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(Box::from);
    let whole = KvEvent::Stored {
        hashes,
        parent: raw.parent,
        tokens,
        block_size,
        tier,
        lora: text(raw.lora),
        salt: text(raw.salt.filter(|salt| !salt.is_empty()).or(keys.salt)),
        extra: 0,
        group: raw.group.unwrap_or(0),
        kind_ok: raw.kind.is_none_or(|kind| KINDS_SCORED.contains(&kind)),
    };
    extras::split(whole, &keys.of_block, out)
}

fn removed(raw: &mut Raw<'_>, out: &mut Vec<KvEvent>) -> Result<(), Left> {
    let tier = tier(raw)?;
    let hashes = raw.hashes.take().ok_or(Left::Malformed)?;
    if hashes.is_empty() {
        return Err(Left::Empty);
    }
    out.push(KvEvent::Removed { hashes, tier, group: raw.group.unwrap_or(0) });
    Ok(())
}

/// vLLM: GPU, CPU, STORAGE (Mooncake in lower case); SGLang: GPU, CPU_PINNED, DISK, EXTERNAL. What another machine keeps is no
/// nearer than a disk.
fn tier(raw: &Raw<'_>) -> Result<Tier, Left> {
    let is = |words: &[&str], medium: &str| words.iter().any(|word| medium.eq_ignore_ascii_case(word));
    match raw.medium {
        _ if raw.remote => Ok(Tier::Disk),
        None => Ok(Tier::Gpu),
        Some(medium) if is(&["gpu"], medium) => Ok(Tier::Gpu),
        Some(medium) if is(&["cpu", "cpu_pinned"], medium) => Ok(Tier::Host),
        Some(medium) if is(&["disk", "storage", "external"], medium) => Ok(Tier::Disk),
        Some(_) => Err(Left::UnknownTier),
    }
}

/// Whether an event that could not be read takes something away.
fn takes_away(event: Reader<'_>) -> bool {
    tag(event).is_some_and(|tag| matches!(tag, "BlockRemoved" | "AllBlocksCleared"))
}

fn tag(event: Reader<'_>) -> Option<&str> {
    let (mut list, mut map) = (event, event);
    if list.array().is_ok() {
        return list.text().ok();
    }
    for _ in 0..map.map().ok()? {
        if map.text().ok()? == "type" {
            return map.text().ok();
        }
        map.skip().ok()?;
    }
    None
}
