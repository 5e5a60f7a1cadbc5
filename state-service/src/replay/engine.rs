//! One fake engine of a replay: computes prompts one after the other, writes answers beside one another, caches blocks, and tells
//! what it cached and evicted as a real engine does.
//!
//! A prompt is looked up when its turn comes. Its blocks are cached when it is computed, and pinned until its answer is written. Knows
//! the service's event type, and nothing else of it.

use super::cache::Cache;
use super::trace::{Forest, Node};
use crate::state::kv_event::{EngineHash, KvBatch, KvEvent, Tier};
use routing::policy::mix;
use std::collections::VecDeque;

/// A request as its engine knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Who it is for, to be handed back.
    pub(super) flight: usize,
    /// Last full block of its prompt.
    pub(super) leaf: Option<Node>,
    /// Tokens of its prompt.
    pub(super) tokens: u32,
    /// Tokens of its answer.
    pub(super) output: u32,
    /// Leading blocks that were cached, once that is known.
    pub(super) cached: usize,
    /// Leading blocks that it pins.
    pinned: usize,
}

/// How fast engines are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    /// Tokens of prompts a second.
    pub(super) prefill: u32,
    /// Tokens of one answer a second.
    pub(super) decode: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Engine {
    cache: Cache,
    speed: Speed,
    /// Tells its hashes from other engines'.
    salt: u64,
    waiting: VecDeque<Work>,
    computing: Option<Work>,
    path: Vec<Node>,
}

impl Work {
    pub(super) const fn new(flight: usize, leaf: Option<Node>, tokens: u32, output: u32) -> Self {
        Self { flight, leaf, tokens, output, cached: 0, pinned: 0 }
    }
}

impl Engine {
    /// `capacity` in blocks.
    pub(super) fn new(salt: u64, capacity: Option<usize>, speed: Speed) -> Self {
        Self {
            cache: Cache::new(capacity),
            speed,
            salt,
            waiting: VecDeque::new(),
            computing: None,
            path: Vec::new(),
        }
    }

    /// A request comes in.
    pub(super) fn accept(&mut self, work: Work) {
        self.waiting.push_back(work);
    }

    /// Begins to compute the next prompt, if it is idle and there is one: milliseconds until it is done.
    pub(super) fn begin(&mut self, forest: &Forest) -> Option<u64> {
        if self.computing.is_some() {
            return None;
        }
        let mut work = self.waiting.pop_front()?;
        forest.path(work.leaf, &mut self.path);
        // The last token is always computed: its answer begins there.
        let most = work.tokens.saturating_sub(1) / forest.block_size().max(1);
        work.cached = self.cache.run(&self.path).min(most as usize);
        work.pinned = work.cached;
        self.cache.pin(self.path.get(..work.pinned).unwrap_or_default());
        self.computing = Some(work);
        let found = work.cached as u64 * u64::from(forest.block_size());
        Some(millis(u64::from(work.tokens).saturating_sub(found), self.speed.prefill))
    }

    /// The prompt is computed: the request, what the engine tells of it, and milliseconds until its answer is written.
    pub(super) fn computed(&mut self, forest: &Forest) -> Option<(Work, KvBatch, u64)> {
        let mut work = self.computing.take()?;
        forest.path(work.leaf, &mut self.path);
        let path = std::mem::take(&mut self.path);
        let (mut evicted, mut stored) = (Vec::new(), Vec::new());
        for node in path.iter().skip(work.pinned) {
            let known = self.cache.holds(*node);
            if !self.cache.store(*node, &mut evicted) {
                break;
            }
            if !known {
                stored.push(work.pinned);
            }
            work.pinned += 1;
        }
        let batch = self.batch(forest, &path, &evicted, &stored);
        self.path = path;
        Some((work, batch, millis(work.output.into(), self.speed.decode)))
    }

    /// The answer is written, and the request over.
    pub(super) fn ended(&mut self, forest: &Forest, work: Work) {
        forest.path(work.leaf, &mut self.path);
        self.cache.release(self.path.get(..work.pinned).unwrap_or_default());
    }

    /// Removals first, as engines tell them; then runs of blocks of `path` at the places `stored`.
    fn batch(&self, forest: &Forest, path: &[Node], evicted: &[Node], stored: &[usize]) -> KvBatch {
        let mut events = Vec::new();
        if !evicted.is_empty() {
            let hashes = evicted.iter().map(|node| self.name(*node)).collect();
            events.push(KvEvent::Removed { hashes, tier: Tier::Gpu, group: 0 });
        }
        for run in stored.chunk_by(|before, after| before + 1 == *after) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let blocks = path.get(*first..=*last).unwrap_or_default();
            let parent = first.checked_sub(1).and_then(|at| path.get(at)).map(|node| self.name(*node));
            events.push(self.stored(forest, blocks, parent));
        }
        KvBatch { events }
    }

    fn stored(&self, forest: &Forest, blocks: &[Node], parent: Option<EngineHash>) -> KvEvent {
        let mut tokens = Vec::with_capacity(blocks.len() * forest.block_size() as usize);
        blocks.iter().for_each(|node| forest.tokens(*node, &mut tokens));
        KvEvent::Stored {
            hashes: blocks.iter().map(|node| self.name(*node)).collect(),
            parent,
            tokens,
            block_size: forest.block_size(),
            tier: Tier::Gpu,
            lora: None,
            salt: None,
            extra: 0,
            group: 0,
            kind_ok: true,
        }
    }

    fn name(&self, Node(node): Node) -> EngineHash {
        EngineHash(mix(self.salt, node.into()))
    }
}

fn millis(tokens: u64, rate: u32) -> u64 {
    tokens.saturating_mul(1000).div_ceil(u64::from(rate.max(1)))
}
