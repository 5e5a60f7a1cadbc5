//! Bytes as a life of an index: each few of them are one operation, done on the index and on the model, and both are asked the same.
//! Any bytes will do, so a fuzzer may choose them.

use super::model::{Model, Path};
use state_service::state::blocks::{BlockIndex, IndexLimits, KvCounters, Overlaps, SlotId};
use state_service::state::kv_event::{EngineHash, KvEvent, Tier};
use std::num::NonZeroU32;

const BLOCK_SIZE: u32 = 2;
const SLOTS: usize = 5;
/// Prompts asked for again at the end.
const PROMPTS_MAX: usize = 64;

/// Index and model, side by side.
struct Pair {
    index: BlockIndex,
    model: Model,
    counters: KvCounters,
    overlaps: Overlaps,
    slots: Vec<SlotId>,
    prompts: Vec<Path>,
}

/// Reads numbers off bytes; zeros at the end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn below(&mut self, end: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first) % end
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 1
    }

    fn tier(&mut self) -> Tier {
        [Tier::Gpu, Tier::Gpu, Tier::Gpu, Tier::Host, Tier::Disk][self.below(5)]
    }

    fn name(&mut self) -> Option<Box<str>> {
        [None, None, None, Some("a"), Some("b")][self.below(5)].map(Box::from)
    }
}

/// Lives one life.
///
/// # Panics
/// When index and model disagree.
pub(crate) fn run(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let size = NonZeroU32::new(BLOCK_SIZE).expect("not zero");
    let mut pair = Pair {
        index: BlockIndex::new(size, IndexLimits::default()),
        model: Model::new(BLOCK_SIZE),
        counters: KvCounters::default(),
        overlaps: Overlaps::default(),
        slots: Vec::new(),
        prompts: Vec::new(),
    };
    (0..SLOTS).for_each(|_| pair.new_slot());
    while !bytes.0.is_empty() {
        pair.step(&mut bytes);
    }
    for prompt in std::mem::take(&mut pair.prompts) {
        pair.compare(&prompt);
    }
    for slot in pair.slots.clone() {
        pair.index.clear(slot);
    }
    assert_eq!(pair.index.resident(), 0, "nothing is left of nothing");
}

impl Pair {
    fn new_slot(&mut self) {
        let slot = self.index.new_slot().expect("few slots");
        assert!(self.model.slots.insert(slot, super::model::Slot::default()).is_none(), "{slot:?} is taken");
        self.slots.push(slot);
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        let which = bytes.below(SLOTS);
        let slot = self.slots[which];
        match bytes.below(32) {
            0 => self.apply(slot, &KvEvent::Cleared),
            1 => {
                self.index.drop_slot(slot);
                self.model.slots.remove(&slot);
                self.apply(slot, &KvEvent::Cleared);
                self.slots.remove(which);
                self.new_slot();
            }
            2..=13 => self.remove(slot, bytes),
            _ => self.store(slot, bytes),
        }
        assert_eq!(self.index.resident(), self.model.resident());
        assert_eq!(self.counters, self.model.counters);
        if !self.prompts.is_empty() {
            let prompt = self.prompts[bytes.below(self.prompts.len())].clone();
            self.compare(&prompt);
        }
    }

    fn apply(&mut self, slot: SlotId, event: &KvEvent) {
        self.index.apply(slot, event, &mut self.counters);
        self.model.apply(slot, event);
    }

    /// A handle of the slot, mostly.
    fn handle(&self, slot: SlotId, tier: Tier, bytes: &mut Bytes<'_>) -> EngineHash {
        let known = &self.model.slots[&slot].tiers[tier as usize];
        if known.is_empty() || bytes.one_in(8) {
            return EngineHash(bytes.below(5) as u64);
        }
        *known.keys().nth(bytes.below(known.len())).expect("below its length")
    }

    fn store(&mut self, slot: SlotId, bytes: &mut Bytes<'_>) {
        let tier = bytes.tier();
        let parent = (!bytes.one_in(3)).then(|| self.handle(slot, tier, bytes));
        let (lora, salt) = (bytes.name(), bytes.name());
        let mut path = match parent {
            None => Path {
                lora: lora.as_deref().map(str::to_owned),
                salt: salt.as_deref().map(str::to_owned),
                blocks: Vec::new(),
            },
            Some(parent) => self.path_of(slot, parent),
        };
        let count = if bytes.one_in(6) { 40 + bytes.below(60) } else { 1 + bytes.below(4) };
        let extra = if bytes.one_in(12) { 7 } else { 0 };
        let (mut hashes, mut tokens) = (Vec::new(), Vec::new());
        let (branch, naming) = (bytes.below(3) as u32, bytes.below(16));
        for at in 0..count {
            // Few different blocks, so that chains meet and part.
            let block = [if at == 0 { branch } else { 0 }, at as u32 % 3];
            path = path.then(&block, extra);
            hashes.push(match naming {
                0 => EngineHash(bytes.below(6) as u64),
                1 => EngineHash(name(&path) ^ 1 << 63),
                _ => EngineHash(name(&path)),
            });
            tokens.extend(block);
        }
        let block_size = match bytes.below(24) {
            1 => 0,
            2 => BLOCK_SIZE + 1,
            3 => {
                tokens.pop();
                BLOCK_SIZE
            }
            _ => BLOCK_SIZE,
        };
        let (group, kind_ok) = (u32::from(bytes.one_in(12)), !bytes.one_in(24));
        let event =
            KvEvent::Stored { hashes, parent, tokens, block_size, tier, lora, salt, extra, group, kind_ok };
        self.apply(slot, &event);
        if self.prompts.len() == PROMPTS_MAX {
            self.prompts.remove(0);
        }
        self.prompts.push(path);
    }

    /// What a handle stands for, in whichever tier; or nothing known.
    fn path_of(&self, slot: SlotId, handle: EngineHash) -> Path {
        let tiers = &self.model.slots[&slot].tiers;
        tiers.iter().find_map(|tier| tier.get(&handle)).map(|held| held.path.clone()).unwrap_or_default()
    }

    fn remove(&mut self, slot: SlotId, bytes: &mut Bytes<'_>) {
        let tier = bytes.tier();
        let count = if bytes.one_in(6) { 40 } else { 1 + bytes.below(4) };
        let hashes = (0..count).map(|_| self.handle(slot, tier, bytes)).collect();
        self.apply(slot, &KvEvent::Removed { hashes, tier, group: u32::from(bytes.one_in(16)) });
    }

    fn compare(&mut self, prompt: &Path) {
        self.index.find(&prompt.chain(), &mut self.overlaps);
        let found: Vec<_> =
            self.overlaps.iter().map(|found| (found.slot, [found.gpu, found.host, found.disk])).collect();
        assert_eq!(found, self.model.find(prompt), "{} blocks", prompt.blocks.len());
    }
}

/// An engine's own name for a block: of its text, not of ours.
fn name(path: &Path) -> u64 {
    let mut name = 0xCBF2_9CE4_8422_2325_u64;
    let words = path.blocks.iter().flat_map(|(tokens, extra)| tokens.iter().copied().chain([*extra as u32]));
    for word in words {
        name = (name ^ u64::from(word)).wrapping_mul(0x0100_0000_01B3);
    }
    // Low enough never to look like a twin's, and never one of the arbitrary few.
    name >> 2 | 1 << 61
}
