//! A trace as it is replayed: sessions, their requests, and the blocks of these.
//!
//! Owns the names of blocks. A block is its content together with all blocks before it, as engines cache it: a [`Node`]. A request
//! keeps its last node only, so that a long conversation costs its new blocks. Knows no format.

use routing::block::{self, BlockHash, Namespace};
use routing::policy::mix;
use std::collections::HashMap;

/// Most distinct blocks of a trace: half a gigabyte.
pub(super) const NODES_MAX: usize = 1 << 23;
/// Most requests of a trace.
pub(super) const REQUESTS_MAX: usize = 1 << 22;
/// Most blocks of one prompt.
pub(super) const PROMPT_BLOCKS_MAX: usize = routing::contract::PROMPT_TOKENS_MAX;

/// A block of the trace with everything before it; names it within the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Node(pub(super) u32);

/// What a block says, whatever comes before it: equal numbers are equal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Content(pub(super) u64);

impl Content {
    /// Content that numbers name.
    pub(super) fn of(words: &[u64]) -> Self {
        Self(words.iter().fold(0, |hash, word| mix(hash, *word)))
    }
}

/// Every distinct block of a trace.
#[derive(Debug)]
pub(super) struct Forest {
    block_size: u32,
    seed: u64,
    blocks: Vec<Block>,
    known: HashMap<(Option<Node>, Content), Node>,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    parent: Option<Node>,
    content: Content,
    hash: BlockHash,
}

/// The trace has more blocks than [`NODES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Forest {
    pub(super) fn new(block_size: u32) -> Self {
        let seed = block::seed(Namespace::default());
        Self { block_size, seed, blocks: Vec::new(), known: HashMap::new() }
    }

    pub(super) const fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Distinct blocks.
    pub(super) const fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The block of this content after `parent`.
    pub(super) fn after(&mut self, parent: Option<Node>, content: Content) -> Result<Node, Full> {
        if let Some(known) = self.known.get(&(parent, content)) {
            return Ok(*known);
        }
        let node = u32::try_from(self.blocks.len()).ok().filter(|_| self.blocks.len() < NODES_MAX);
        let node = Node(node.ok_or(Full)?);
        let mut tokens = Vec::new();
        self.write_tokens(content, &mut tokens);
        let hash = match parent.and_then(|parent| self.block(parent)) {
            Some(parent) => block::next(parent.hash, self.seed, &tokens),
            None => block::first(self.seed, &tokens),
        };
        self.blocks.push(Block { parent, content, hash });
        self.known.insert((parent, content), node);
        Ok(node)
    }

    /// No more blocks come.
    pub(super) fn seal(&mut self) {
        self.known = HashMap::new();
    }

    fn block(&self, node: Node) -> Option<&Block> {
        self.blocks.get(node.0 as usize)
    }

    /// The blocks up to `leaf`, first one first.
    pub(super) fn path(&self, leaf: Option<Node>, out: &mut Vec<Node>) {
        out.clear();
        let mut at = leaf;
        while let Some(node) = at {
            out.push(node);
            at = self.block(node).and_then(|block| block.parent);
        }
        out.reverse();
    }

    /// What the service calls a block.
    pub(super) fn hash(&self, node: Node) -> BlockHash {
        self.block(node).map_or(BlockHash(0), |block| block.hash)
    }

    /// Appends the tokens of a block: its content in the first two, then zeros.
    pub(super) fn tokens(&self, node: Node, out: &mut Vec<u32>) {
        if let Some(block) = self.block(node) {
            self.write_tokens(block.content, out);
        }
    }

    fn write_tokens(&self, Content(content): Content, out: &mut Vec<u32>) {
        let end = out.len() + self.block_size as usize;
        out.extend([content as u32, (content >> 32) as u32]);
        out.resize(end, 0);
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// When it was made, in milliseconds. Its session may delay it.
    pub(super) at: u64,
    /// Its last full block; none of a prompt shorter than a block.
    pub(super) leaf: Option<Node>,
    /// Blocks that the trace lists, a last one that is not full included.
    pub(super) listed: u32,
    /// Tokens of its prompt.
    pub(super) tokens: u32,
    /// Tokens of its answer.
    pub(super) output: u32,
}

/// Requests that come one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Session {
    /// The key its requests carry, if any.
    pub(super) key: Option<Box<str>>,
    /// Its requests among the trace's, in order.
    pub(super) requests: std::ops::Range<usize>,
    /// Line of the trace, from 0: sessions of one line keep their distance.
    pub(super) line: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) forest: Forest,
    pub(super) requests: Vec<Request>,
    pub(super) sessions: Vec<Session>,
}

impl Trace {
    pub(super) fn new(block_size: u32) -> Self {
        Self { forest: Forest::new(block_size), requests: Vec::new(), sessions: Vec::new() }
    }

    /// Lets requests that bear the same time come evenly until the next time that the trace knows: its clock is coarse.
    pub(super) fn refine(&mut self) {
        let mut order: Vec<(u64, usize)> =
            self.requests.iter().enumerate().map(|(number, request)| (request.at, number)).collect();
        order.sort_unstable();
        let mut gap = 0;
        let groups: Vec<&[(u64, usize)]> = order.chunk_by(|left, right| left.0 == right.0).collect();
        for (group, after) in groups.iter().zip(groups.iter().skip(1).map(Some).chain([None])) {
            let begins = group.first().map_or(0, |(at, _)| *at);
            let next = after.and_then(|after| after.first());
            gap = next.map_or(gap, |(at, _)| at - begins);
            for (nth, (at, number)) in group.iter().enumerate() {
                if let Some(request) = self.requests.get_mut(*number) {
                    request.at = at + gap * nth as u64 / group.len() as u64;
                }
            }
        }
    }

    /// Lets lines begin evenly over `spread` milliseconds.
    pub(super) fn spread(&mut self, spread: u64, lines: usize) {
        let lines = u64::try_from(lines.max(1)).unwrap_or(u64::MAX);
        for session in &self.sessions {
            let line = u64::try_from(session.line).unwrap_or(u64::MAX);
            let begin = u128::from(spread) * u128::from(line) / u128::from(lines);
            let begin = u64::try_from(begin).unwrap_or(u64::MAX);
            for request in self.requests.get_mut(session.requests.clone()).unwrap_or_default() {
                request.at = request.at.saturating_add(begin);
            }
        }
    }
}
