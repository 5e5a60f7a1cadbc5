//! How each engine in its version writes a batch: arrays or maps, which fields, hashes as numbers or bytes. Written from recorded
//! frames of the engines themselves; does not know who sends it.

use super::event::{Event, Stored};
use super::msgpack::Value;
use crate::config::{EngineConfig, HashForm, Kind, Version};

/// Which engine writes.
#[derive(Clone, Debug)]
pub(crate) struct Dialect {
    kind: Kind,
    version: Version,
    hashes: HashForm,
    block_size: u64,
}

/// A field of an event: in arrays its place is what counts, in maps its name.
struct Field {
    name: &'static str,
    value: Value,
    /// Left out of maps when nil.
    optional: bool,
}

const fn field(name: &'static str, value: Value) -> Field {
    Field { name, value, optional: false }
}

const fn optional(name: &'static str, value: Value) -> Field {
    Field { name, value, optional: true }
}

impl Dialect {
    /// Of an engine and how its hashes shall look.
    pub(crate) fn new(config: &EngineConfig, hashes: HashForm) -> Self {
        let (kind, version) = (config.kind, config.version);
        // Bytes came with 0.10.2, and only to vLLM.
        let has_bytes = kind == Kind::Vllm && version >= Version(0, 10, 2);
        let hashes = if has_bytes { hashes } else { HashForm::Int };
        Self { kind, version, hashes, block_size: config.block_size as u64 }
    }

    /// Whether identical blocks have identical hashes in every process.
    pub(crate) fn is_seeded_per_process(&self) -> bool {
        self.kind == Kind::Vllm && self.version < Version(0, 32, 0)
    }

    /// Whether a hash tells its own block's tokens alone, not what is before them.
    pub(crate) fn is_unchained(&self) -> bool {
        self.kind == Kind::Sglang && self.version < Version(0, 5, 9)
    }

    /// Whether replayed batches carry the topic.
    pub(crate) fn replays_topic(&self) -> bool {
        self.since(Version(0, 26, 0), Version(0, 5, 22))
    }

    fn is_map(&self) -> bool {
        self.since(Version(0, 24, 0), Version(0, 5, 20))
    }

    /// TensorRT-LLM has a vLLM's newest ways in every version that publishes.
    fn since(&self, vllm: Version, sglang: Version) -> bool {
        match self.kind {
            Kind::Vllm => self.version >= vllm,
            Kind::Sglang => self.version >= sglang,
            Kind::Trtllm => true,
        }
    }

    fn vllm_since(&self, minor: u32, patch: u32) -> bool {
        match self.kind {
            Kind::Vllm => self.version >= Version(0, minor, patch),
            Kind::Sglang => false,
            Kind::Trtllm => Version(0, 26, 0) >= Version(0, minor, patch),
        }
    }

    /// A batch's payload. `at` is in seconds since 1970.
    pub(crate) fn batch(&self, at: f64, events: &[Event], rank: u32) -> Vec<u8> {
        let written = events.iter().flat_map(|event| self.event(event)).collect();
        let mut batch = vec![Value::Float(at), Value::Array(written)];
        if self.kind != Kind::Vllm || self.version >= Version(0, 9, 2) {
            batch.push(Value::Unsigned(u64::from(rank)));
        }
        let mut out = Vec::with_capacity(256);
        Value::Array(batch).write(&mut out);
        out
    }

    fn event(&self, event: &Event) -> Vec<Value> {
        match event {
            Event::Stored(stored) => self.pages(stored),
            Event::Removed(hashes) => self.removed(hashes),
            Event::Cleared => vec![self.tagged("AllBlocksCleared", Vec::new())],
        }
    }

    /// SGLang told each page apart until 0.5.18.
    fn pages(&self, stored: &Stored) -> Vec<Value> {
        if self.since(Version(0, 0, 0), Version(0, 5, 19)) {
            return vec![self.tagged("BlockStored", self.stored(stored))];
        }
        stored
            .pages(self.block_size as usize)
            .map(|page| self.tagged("BlockStored", self.stored(&page)))
            .collect()
    }

    fn stored(&self, stored: &Stored) -> Vec<Field> {
        let space = &stored.space;
        let lora = space.lora.as_ref();
        let mut fields = vec![
            field("block_hashes", self.hashes(&stored.hashes)),
            field("parent_block_hash", stored.parent.map_or(Value::Nil, |parent| self.hash(parent))),
            field("token_ids", Value::Tokens(stored.tokens.clone())),
            field("block_size", Value::Unsigned(self.block_size)),
            field("lora_id", lora.map_or(Value::Nil, |(id, _)| Value::Unsigned(*id))),
        ];
        fields.extend(self.medium());
        match self.kind {
            Kind::Sglang => fields.extend(self.sglang_rest(stored)),
            Kind::Vllm | Kind::Trtllm => fields.extend(self.vllm_rest(stored)),
        }
        fields
    }

    fn medium(&self) -> Option<Field> {
        let has = self.since(Version(0, 10, 2), Version(0, 5, 9));
        has.then(|| field("medium", Value::Text("GPU".to_owned())))
    }

    fn vllm_rest(&self, stored: &Stored) -> Vec<Field> {
        let space = &stored.space;
        let kind = || Value::Text("full_attention".to_owned());
        let session = space.session.as_deref().filter(|_| self.kind == Kind::Vllm);
        let all = [
            (14, field("lora_name", Value::text(space.lora.as_ref().map(|(_, name)| name.as_str())))),
            (17, field("extra_keys", Value::Array(extra_keys(stored)))),
            (20, field("group_idx", Value::Unsigned(0))),
            (22, field("kv_cache_spec_kind", kind())),
            (22, optional("kv_cache_spec_sliding_window", Value::Nil)),
            (30, optional("session_id", Value::text(session))),
        ];
        all.into_iter().filter(|(since, _)| self.vllm_since(*since, 0)).map(|(_, field)| field).collect()
    }

    fn sglang_rest(&self, stored: &Stored) -> Vec<Field> {
        let space = &stored.space;
        let (salt, lora) = (space.salt.as_deref(), space.lora.as_ref().map(|(_, name)| name.as_str()));
        if !self.is_map() {
            let has = self.version >= Version(0, 5, 18);
            let extra =
                |salt: &str| field("", Value::Map(vec![("cache_salt", Value::Text(salt.to_owned()))]));
            return salt.filter(|_| has).map(extra).into_iter().collect();
        }
        let mut fields = vec![
            optional("cache_salt", Value::text(salt)),
            optional("session_id", Value::text(space.session.as_deref())),
        ];
        if self.version >= Version(0, 5, 22) {
            fields.push(optional("lora_name", Value::text(lora)));
        }
        fields
    }

    /// One event a hash, but SGLang's that from 0.5.15 on tells them together.
    fn removed(&self, hashes: &[u64]) -> Vec<Value> {
        let one = |hashes: &[u64]| {
            let group = self.vllm_since(20, 0).then(|| field("group_idx", Value::Unsigned(0)));
            let fields = [field("block_hashes", self.hashes(hashes))];
            let rest = self.medium().into_iter().chain(group);
            self.tagged("BlockRemoved", fields.into_iter().chain(rest).collect())
        };
        match self.kind {
            Kind::Sglang if self.version >= Version(0, 5, 15) => vec![one(hashes)],
            _ => hashes.chunks(1).map(one).collect(),
        }
    }

    fn tagged(&self, tag: &str, fields: Vec<Field>) -> Value {
        let tag = Value::Text(tag.to_owned());
        if !self.is_map() {
            return Value::Array(
                std::iter::once(tag).chain(fields.into_iter().map(|field| field.value)).collect(),
            );
        }
        let told = fields.into_iter().filter(|field| !(field.optional && field.value == Value::Nil));
        Value::Map(
            std::iter::once(("type", tag)).chain(told.map(|field| (field.name, field.value))).collect(),
        )
    }

    fn hashes(&self, hashes: &[u64]) -> Value {
        Value::Array(hashes.iter().map(|&hash| self.hash(hash)).collect())
    }

    /// Python's own hashes, and SGLang's, have a sign; the last eight bytes of long ones are the number.
    fn hash(&self, hash: u64) -> Value {
        if self.hashes == HashForm::Bytes {
            return Value::Bytes((0..4).rev().flat_map(|part| long_part(hash, part).to_be_bytes()).collect());
        }
        match self.since(Version(0, 10, 2), Version(u32::MAX, 0, 0)) {
            true => Value::Unsigned(hash),
            false => Value::Signed(hash.cast_signed()),
        }
    }
}

fn long_part(hash: u64, part: u64) -> u64 {
    if part == 0 { hash } else { (hash ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) }
}

/// A list a block: its adapter, and at the start of a prompt the salt; nil where there is neither.
fn extra_keys(stored: &Stored) -> Vec<Value> {
    let space = &stored.space;
    let keys = |index: usize| {
        let salt = space.salt.as_deref().filter(|_| stored.is_start && index == 0);
        let keys = [space.lora.as_ref().map(|(_, name)| name.as_str()), salt];
        let keys: Vec<Value> = keys.into_iter().flatten().map(|key| Value::Text(key.to_owned())).collect();
        if keys.is_empty() { Value::Nil } else { Value::Array(keys) }
    };
    (0..stored.hashes.len()).map(keys).collect()
}
