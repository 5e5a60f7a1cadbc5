//! The data-parallel ranks behind one port: which one a request goes to, how long it keeps it busy, what its
//! cache holds. Knows tokens and time; does not know HTTP.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::config::EngineConfig;
use crate::prefix_cache::{BlockHash, CacheChange, PrefixCache};

/// Counters and gauges of one rank, as `/metrics` and `/control/state` show them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RankFigures {
    /// Global number.
    pub(crate) rank: u32,
    /// Requests whose prompt is being, or has been, computed.
    pub(crate) running: usize,
    /// Requests waiting for the rank to be free for their prompt.
    pub(crate) waiting: usize,
    /// Blocks in the prefix cache.
    pub(crate) cached_blocks: usize,
    /// Of those, blocks some request computes with.
    pub(crate) used_blocks: usize,
    /// Prompt tokens looked up in the cache.
    pub(crate) queried_tokens: u64,
    /// Of those, tokens found.
    pub(crate) hit_tokens: u64,
    /// Tokens generated.
    pub(crate) generated_tokens: u64,
    /// Requests that ended by their own end.
    pub(crate) stopped: u64,
    /// Requests that ended at their token limit.
    pub(crate) limited: u64,
    /// Requests whose client went away.
    pub(crate) aborted: u64,
}

/// Why a reply ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model's own end.
    Stop,
    /// The token limit.
    Length,
}

/// All ranks of one engine.
pub(crate) struct Ranks {
    ranks: Vec<Rank>,
    next: Mutex<usize>,
    block_size: usize,
    prefill: Duration,
    decode: Duration,
}

struct Rank {
    books: Mutex<Books>,
    /// Held while this rank computes a prompt, first come first served; when it was last done.
    lane: tokio::sync::Mutex<Instant>,
}

struct Books {
    figures: RankFigures,
    cache: PrefixCache,
}

impl Rank {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ranks {
    /// Empty ranks.
    #[must_use]
    pub(crate) fn new(config: &EngineConfig) -> Self {
        let rank = |index| Rank {
            books: Mutex::new(Books {
                figures: RankFigures { rank: config.dp_start + index, ..RankFigures::default() },
                cache: PrefixCache::new(config.cache_blocks.max(1)),
            }),
            lane: tokio::sync::Mutex::new(Instant::now()),
        };
        Self {
            ranks: (0..config.ranks.max(1)).map(rank).collect(),
            next: Mutex::new(0),
            block_size: config.block_size.max(1),
            prefill: Duration::from_micros(config.prefill_us_per_token),
            decode: Duration::from_micros(config.decode_us_per_token),
        }
    }

    /// Gives a request its rank: the one asked for, else the one with the fewest requests, ties in turn.
    #[must_use]
    pub(crate) fn admit(self: &Arc<Self>, asked: Option<usize>) -> Turn {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let index = asked.unwrap_or_else(|| {
            let index = self.least_loaded(*next);
            *next = (index + 1) % self.ranks.len();
            index
        });
        self.ranks[index].books().figures.waiting += 1;
        drop(next);
        let root = BlockHash::root("", None);
        Turn {
            ranks: Arc::clone(self),
            index,
            phase: Phase::Waiting,
            root,
            chain: Vec::new(),
            held: 0,
            tail: Vec::new(),
        }
    }

    /// Every rank's figures, by rank.
    #[must_use]
    pub(crate) fn figures(&self) -> Vec<RankFigures> {
        let read = |rank: &Rank| {
            let books = rank.books();
            let (cached_blocks, used_blocks) = (books.cache.len(), books.cache.referenced());
            RankFigures { cached_blocks, used_blocks, ..books.figures }
        };
        self.ranks.iter().map(read).collect()
    }

    /// Clears every cache; `false` when a request held blocks that therefore stay.
    pub(crate) fn clear_caches(&self) -> bool {
        let clear = |rank: &Rank| {
            let mut books = rank.books();
            announce(&books.cache.clear());
            books.cache.is_empty()
        };
        // Not `all`: it would stop at the first rank in use.
        self.ranks.iter().map(clear).filter(|done| !done).count() == 0
    }

    fn least_loaded(&self, from: usize) -> usize {
        let count = self.ranks.len();
        let load = |index: &usize| {
            let figures = self.ranks[*index].books().figures;
            figures.running + figures.waiting
        };
        (0..count).map(|step| (from + step) % count).min_by_key(load).unwrap_or(0)
    }
}

/// Where a publisher of cache events will listen. Nothing is published yet.
fn announce(_change: &CacheChange) {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    Done,
}

/// One prompt and its reply on one rank. Dropping it early is the client going away.
pub(crate) struct Turn {
    ranks: Arc<Ranks>,
    index: usize,
    phase: Phase,
    root: BlockHash,
    chain: Vec<BlockHash>,
    /// Leading blocks of `chain` this turn holds a reference on.
    held: usize,
    /// Tokens after the last full block.
    tail: Vec<u32>,
}

/// What the cache did for a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prefill {
    /// Prompt tokens found in the cache.
    pub(crate) cached: usize,
    /// Prompt tokens newly cached.
    pub(crate) written: usize,
    /// Hash of the whole prompt in its namespace.
    pub(crate) fingerprint: u64,
}

impl Turn {
    /// The global number of the rank that serves.
    #[must_use]
    pub(crate) fn rank(&self) -> u32 {
        self.rank_ref().books().figures.rank
    }

    /// The rank's place within the engine.
    #[must_use]
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Computes the prompt: waits until the rank is free, then as long as its uncached tokens take.
    pub(crate) async fn prefill(&mut self, root: BlockHash, prompt: &[u32]) -> Prefill {
        self.root = root;
        root.chain_blocks(prompt, self.ranks.block_size, &mut self.chain);
        if self.ranks.prefill.is_zero() {
            return self.look_up(prompt);
        }
        let ranks = Arc::clone(&self.ranks);
        let mut lane = ranks.ranks[self.index].lane.lock().await;
        let now = Instant::now();
        // A timer is up to a millisecond late; what it was late the next prompt starts early.
        let start = if now - *lane < Duration::from_millis(2) { *lane } else { now };
        let found = self.look_up(prompt);
        let done = start + ranks.prefill * u32::try_from(prompt.len() - found.cached).unwrap_or(u32::MAX);
        sleep_until(done).await;
        *lane = done;
        found
    }

    /// Waits until `count` tokens after `started` are due.
    pub(crate) async fn decode_until(&self, started: Instant, count: usize) {
        if !self.ranks.decode.is_zero() {
            sleep_until(started + self.ranks.decode * u32::try_from(count).unwrap_or(u32::MAX)).await;
        }
    }

    /// Puts generated tokens behind the prompt. The newest token of a reply is not computed before the next
    /// one is asked for, so the caller leaves out the last of all, as an engine does.
    pub(crate) fn extend(&mut self, tokens: impl IntoIterator<Item = u32>) {
        let size = self.ranks.block_size;
        let before = self.chain.len();
        for token in tokens {
            self.tail.push(token);
            if self.tail.len() == size {
                let parent = self.chain.last().copied().unwrap_or(self.root);
                self.chain.push(parent.chain(&self.tail));
                self.tail.clear();
            }
        }
        // A prompt that found no room holds only its beginning: nothing can follow a hole.
        if self.held == before && self.chain.len() > before {
            let (held, change) = self.ranks.ranks[self.index].books().cache.hold(&self.chain, before);
            announce(&change);
            self.held = held;
        }
    }

    /// The reply is complete.
    pub(crate) fn finish(mut self, finish: Finish, generated: usize) {
        let mut books = self.rank_ref().books();
        books.figures.generated_tokens += generated as u64;
        match finish {
            Finish::Stop => books.figures.stopped += 1,
            Finish::Length => books.figures.limited += 1,
        }
        drop(books);
        self.leave();
    }

    fn look_up(&mut self, prompt: &[u32]) -> Prefill {
        let size = self.ranks.block_size;
        self.tail.extend_from_slice(&prompt[self.chain.len() * size..]);
        let rank = &self.ranks.ranks[self.index];
        let mut books = rank.books();
        // At least one token is computed, so a prompt that ends with its last block recomputes that block.
        let hit = books.cache.hit(&self.chain).min(prompt.len().saturating_sub(1) / size);
        let (held, change) = books.cache.hold(&self.chain, 0);
        announce(&change);
        let figures = &mut books.figures;
        figures.waiting -= 1;
        figures.running += 1;
        figures.queried_tokens += prompt.len() as u64;
        figures.hit_tokens += (hit * size) as u64;
        drop(books);
        (self.held, self.phase) = (held, Phase::Running);
        let last = self.chain.last().copied().unwrap_or(self.root);
        let fingerprint = last.chain(&self.tail).value();
        Prefill { cached: hit * size, written: held.saturating_sub(hit) * size, fingerprint }
    }

    fn leave(&mut self) {
        let mut books = self.ranks.ranks[self.index].books();
        match self.phase {
            Phase::Waiting => books.figures.waiting -= 1,
            Phase::Running => books.figures.running -= 1,
            Phase::Done => return,
        }
        books.cache.release(&self.chain[..self.held]);
        drop(books);
        self.phase = Phase::Done;
    }

    fn rank_ref(&self) -> &Rank {
        &self.ranks.ranks[self.index]
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.phase != Phase::Done {
            self.rank_ref().books().figures.aborted += 1;
            self.leave();
        }
    }
}

#[cfg(test)]
mod tests;
