//! SMG's run-compressed index (crate `kv-index`) as the bench uses it: the one to beat.

use kv_index::{
    ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock, compute_content_hash,
    compute_request_content_hashes,
};

use super::Contender;
use super::shape::{BLOCK_TOKENS, Step};

/// The index with what its callers keep for each worker.
pub(crate) struct KvIndex {
    index: ChainIndex,
    workers: Vec<(u32, ChainBlockMap)>,
    /// Used again by every event, as its callers would.
    blocks: Vec<StoredBlock>,
}

impl Contender for KvIndex {
    type Event = Step;
    type Prompt = Vec<ContentHash>;

    fn event(step: &Step) -> Step {
        step.clone()
    }

    fn prompt(tokens: &[u32]) -> Vec<ContentHash> {
        compute_request_content_hashes(tokens, BLOCK_TOKENS as usize)
    }

    fn new(workers: u32) -> Self {
        let index = ChainIndex::with_max_workers(workers as usize);
        let named = |n: u32| index.intern_worker(&n.to_string()).map(|id| (id, ChainBlockMap::new()));
        let workers = (0..workers).filter_map(|n| named(n).ok()).collect();
        Self { index, workers, blocks: Vec::new() }
    }

    fn apply(&mut self, step: &Step) {
        let tokens = step.tokens.chunks_exact(BLOCK_TOKENS as usize);
        self.blocks.clear();
        self.blocks.extend(step.hashes.iter().zip(tokens).map(|(hash, tokens)| StoredBlock {
            seq_hash: SequenceHash(*hash),
            content_hash: compute_content_hash(tokens),
        }));
        let (id, map) = &mut self.workers[step.worker as usize];
        let parent = step.parent.map(SequenceHash);
        self.index.apply_stored(*id, &self.blocks, parent, map).unwrap_or_else(|error| panic!("{error}"));
    }

    fn find(&mut self, prompt: &Vec<ContentHash>) -> u64 {
        let mut found = 0;
        self.index.score_into(prompt, |hash| hash.0, false, |_, blocks| found += u64::from(blocks));
        found
    }

    fn bytes(&self) -> usize {
        let stats = self.index.stats();
        let maps: usize = self.workers.iter().map(|(_, map)| map.capacity() * 17).sum();
        stats.arena_chunk_bytes + stats.slab_bytes + maps
    }
}
