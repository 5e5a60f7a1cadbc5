//! The block index as one would write it without a thought for time or space: every handle with the whole text it stands for. What the
//! index answers is right when this answers the same. Knows the rules, none of the structure.

use routing::block::{self, BlockHash, Namespace};
use state_service::state::blocks::{Ignored, KvCounters, SlotId};
use state_service::state::kv_event::{EngineHash, KvEvent, Tier};
use std::collections::{BTreeMap, BTreeSet};

/// A block with all that came before it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path {
    pub(crate) lora: Option<String>,
    pub(crate) salt: Option<String>,
    /// Tokens and whatever they do not say.
    pub(crate) blocks: Vec<(Vec<u32>, u64)>,
}

impl Path {
    pub(crate) fn then(&self, tokens: &[u32], extra: u64) -> Self {
        let mut next = self.clone();
        next.blocks.push((tokens.to_vec(), extra));
        next
    }

    fn up_to(&self, blocks: usize) -> Self {
        Self { blocks: self.blocks[..blocks].to_vec(), ..self.clone() }
    }

    /// The hashes a prompt of these blocks has.
    pub(crate) fn chain(&self) -> Vec<BlockHash> {
        let seed = block::seed(Namespace { lora: self.lora.as_deref(), salt: self.salt.as_deref() });
        let mut chain: Vec<BlockHash> = Vec::new();
        for (tokens, extra) in &self.blocks {
            let hash = match chain.last() {
                None => block::first(seed, tokens),
                Some(last) => block::next(*last, seed, tokens),
            };
            chain.push(block::with_extra(hash, *extra));
        }
        chain
    }
}

/// What a handle stands for, and in how many copies.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) path: Path,
    copies: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Slot {
    group: Option<u32>,
    pub(crate) tiers: [BTreeMap<EngineHash, Held>; 3],
}

/// The index that remembers everything.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    block_size: u32,
    pub(crate) slots: BTreeMap<SlotId, Slot>,
    pub(crate) counters: KvCounters,
}

impl Model {
    pub(crate) fn new(block_size: u32) -> Self {
        Self { block_size, slots: BTreeMap::new(), counters: KvCounters::default() }
    }

    pub(crate) fn apply(&mut self, id: SlotId, event: &KvEvent) {
        let blocks = match event {
            KvEvent::Stored { hashes, .. } | KvEvent::Removed { hashes, .. } => hashes.len().max(1),
            KvEvent::Cleared => 1,
        };
        let Some(slot) = self.slots.get_mut(&id) else {
            return self.counters.ignore(Ignored::UnknownSlot, blocks);
        };
        match event {
            KvEvent::Stored { .. } => {
                if let Err(reason) = store(self.block_size, slot, &mut self.counters, event) {
                    self.counters.ignore(reason, blocks);
                }
            }
            KvEvent::Removed { hashes, tier, group } => {
                if slot.group.is_some_and(|scored| scored != *group) {
                    return self.counters.ignore(Ignored::OtherGroup, hashes.len());
                }
                let held = &mut slot.tiers[*tier as usize];
                hashes.iter().for_each(|hash| remove(held, &mut self.counters, *hash));
            }
            KvEvent::Cleared => {
                self.counters.clears += 1;
                *slot = Slot::default();
            }
        }
    }

    /// (slot, tier, block)s with a handle.
    pub(crate) fn resident(&self) -> usize {
        let tiers = self.slots.values().flat_map(|slot| &slot.tiers);
        tiers.map(|tier| tier.values().map(|held| &held.path).collect::<BTreeSet<_>>().len()).sum()
    }

    /// Leading blocks of a prompt held on the device, then with the host, then with everything; of each slot that has any.
    pub(crate) fn find(&self, prompt: &Path) -> Vec<(SlotId, [u32; 3])> {
        let of = |slot: &Slot| {
            let mut depths = [0; 3];
            for (tier, depth) in depths.iter_mut().enumerate() {
                let holds = |path: &Path| {
                    slot.tiers[..=tier].iter().any(|held| held.values().any(|held| held.path == *path))
                };
                *depth = (1..=prompt.blocks.len()).take_while(|n| holds(&prompt.up_to(*n))).count() as u32;
            }
            [depths[0], depths[1] - depths[0], depths[2] - depths[1]]
        };
        let all = self.slots.iter().map(|(id, slot)| (*id, of(slot)));
        all.filter(|(_, found)| *found != [0; 3]).collect()
    }
}

fn store(size: u32, slot: &mut Slot, counters: &mut KvCounters, event: &KvEvent) -> Result<(), Ignored> {
    let KvEvent::Stored { hashes, parent, tokens, block_size, tier, lora, salt, extra, group, kind_ok } =
        event
    else {
        return Ok(());
    };
    if *block_size == 0 || tokens.is_empty() {
        return Err(Ignored::Placeholder);
    }
    if *block_size != size {
        return Err(Ignored::OtherBlockSize);
    }
    if tokens.len() != hashes.len() * size as usize {
        return Err(Ignored::Misshapen);
    }
    if !kind_ok || *slot.group.get_or_insert(*group) != *group {
        return Err(Ignored::OtherGroup);
    }
    let mut path = match parent {
        None => Path {
            lora: lora.as_deref().map(str::to_owned),
            salt: salt.as_deref().map(str::to_owned),
            blocks: Vec::new(),
        },
        Some(parent) => parent_of(slot, *tier, *parent).ok_or(Ignored::UnknownParent)?,
    };
    for (hash, tokens) in hashes.iter().zip(tokens.chunks(size as usize)) {
        path = path.then(tokens, *extra);
        announce(&mut slot.tiers[*tier as usize], counters, *hash, &path);
    }
    Ok(())
}

fn parent_of(slot: &Slot, tier: Tier, hash: EngineHash) -> Option<Path> {
    let own = slot.tiers[tier as usize].get(&hash);
    own.or_else(|| slot.tiers.iter().find_map(|tier| tier.get(&hash))).map(|held| held.path.clone())
}

fn announce(held: &mut BTreeMap<EngineHash, Held>, counters: &mut KvCounters, hash: EngineHash, path: &Path) {
    if let Some(before) = held.get_mut(&hash).filter(|before| before.path == *path) {
        before.copies += 1;
        counters.again += 1;
        return;
    }
    counters.stored += 1;
    counters.moved += u64::from(held.contains_key(&hash));
    counters.twins += u64::from(held.iter().any(|(other, held)| *other != hash && held.path == *path));
    held.insert(hash, Held { path: path.clone(), copies: 1 });
}

fn remove(held: &mut BTreeMap<EngineHash, Held>, counters: &mut KvCounters, hash: EngineHash) {
    match held.get_mut(&hash) {
        None => counters.unknown_removed += 1,
        Some(held) if held.copies > 1 => {
            held.copies -= 1;
            counters.copies_removed += 1;
        }
        Some(_) => {
            held.remove(&hash);
            counters.removed += 1;
        }
    }
}
