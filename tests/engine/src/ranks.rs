//! The data-parallel ranks behind one port: which one a request goes to, how long it keeps it busy, what its
//! cache holds. Knows tokens and time; does not know HTTP.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::config::{EngineConfig, Kind};
use crate::kv_events::{self, Feed, Tokens};
use crate::prefix_cache::{BlockHash, CacheChange, Copies, Place, PrefixCache};
use crate::space::Space;

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
    copies: Copies,
    cache_blocks: usize,
    feeds: Vec<Arc<Feed>>,
}

struct Rank {
    books: Mutex<Books>,
    /// Held while this rank computes a prompt, first come first served; when it was last done.
    lane: tokio::sync::Mutex<Instant>,
}

struct Books {
    figures: RankFigures,
    cache: PrefixCache,
    /// Which cache this is: what is held in an earlier one is gone.
    life: u64,
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
        let copies = if config.kind == Kind::Vllm { Copies::Kept } else { Copies::Merged };
        let cache_blocks = config.cache_blocks.max(1);
        let rank = |index| Rank {
            books: Mutex::new(Books {
                figures: RankFigures { rank: config.dp_start + index, ..RankFigures::default() },
                cache: PrefixCache::new(cache_blocks, copies),
                life: 0,
            }),
            lane: tokio::sync::Mutex::new(Instant::now()),
        };
        Self {
            ranks: (0..config.ranks.max(1)).map(rank).collect(),
            next: Mutex::new(0),
            block_size: config.block_size.max(1),
            prefill: Duration::from_micros(config.prefill_us_per_token),
            decode: Duration::from_micros(config.decode_us_per_token),
            copies,
            cache_blocks,
            feeds: kv_events::feeds(config),
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
        Turn {
            ranks: Arc::clone(self),
            index,
            phase: Phase::Waiting,
            space: Arc::new(Space::new("", None, None)),
            chain: Vec::new(),
            held: Vec::new(),
            life: 0,
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

    /// Clears every cache; `false` when one stays as it is because requests compute with it.
    pub(crate) fn clear_caches(&self) -> bool {
        let clear = |(index, rank): (usize, &Rank)| {
            let mut books = rank.books();
            if books.figures.running > 0 {
                return false;
            }
            books.cache.clear();
            if let Some(feed) = self.feeds.get(index) {
                feed.cleared();
            }
            true
        };
        // Not `all`: it would stop at the first rank in use.
        self.ranks.iter().enumerate().map(clear).filter(|done| !done).count() == 0
    }

    /// A rank's cache and feed as in a process just started; what runs there goes on and holds nothing.
    pub(crate) fn restart(&self, index: usize) {
        let mut books = self.ranks[index].books();
        books.cache = PrefixCache::new(self.cache_blocks, self.copies);
        books.life += 1;
        if let Some(feed) = self.feeds.get(index) {
            feed.restart();
        }
    }

    /// Where events go, by rank; none when no events are published.
    pub(crate) fn feeds(&self) -> &[Arc<Feed>] {
        &self.feeds
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
    space: Arc<Space>,
    chain: Vec<BlockHash>,
    /// Where the leading blocks of `chain` lie that this turn holds a reference on.
    held: Vec<Place>,
    /// The cache they lie in.
    life: u64,
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
    pub(crate) async fn prefill(&mut self, space: &Arc<Space>, prompt: &[u32]) -> Prefill {
        self.space = Arc::clone(space);
        space.root.chain_blocks(prompt, self.ranks.block_size, &mut self.chain);
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
        for token in tokens {
            self.tail.push(token);
            if self.tail.len() == self.ranks.block_size {
                self.chain.push(self.last().chain(&self.tail));
                self.fill();
                self.tail.clear();
            }
        }
    }

    /// The tail has become the chain's last block: a step of its own.
    fn fill(&mut self) {
        let ranks = Arc::clone(&self.ranks);
        let mut books = ranks.ranks[self.index].books();
        let before = self.chain.len() - 1;
        // A prompt that found no room holds only its beginning: nothing can follow a hole. Nor one whose cache is gone.
        if self.held.len() == before && self.life == books.life {
            let change = books.cache.hold(&self.chain, 0, &mut self.held);
            self.announce(&change, before, &self.tail);
        }
    }

    /// Tells what a step did; under the books' lock, so that events have the cache's own order.
    fn announce(&self, change: &CacheChange, first_block: usize, tokens: &[u32]) {
        if let Some(feed) = self.ranks.feeds.get(self.index) {
            let tokens = Tokens { first_block, block_size: self.ranks.block_size, tokens };
            feed.step(change, tokens, &self.space, &self.chain[..self.held.len()]);
        }
    }

    /// The last full block, or where the chain begins.
    fn last(&self) -> BlockHash {
        self.chain.last().copied().unwrap_or(self.space.root)
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
        let change = books.cache.hold(&self.chain, hit, &mut self.held);
        self.life = books.life;
        self.announce(&change, 0, prompt);
        let figures = &mut books.figures;
        figures.waiting -= 1;
        figures.running += 1;
        figures.queried_tokens += prompt.len() as u64;
        figures.hit_tokens += (hit * size) as u64;
        drop(books);
        self.phase = Phase::Running;
        let fingerprint = self.last().chain(&self.tail).value();
        Prefill { cached: hit * size, written: self.held.len().saturating_sub(hit) * size, fingerprint }
    }

    fn leave(&mut self) {
        let mut books = self.ranks.ranks[self.index].books();
        match self.phase {
            Phase::Waiting => books.figures.waiting -= 1,
            Phase::Running => books.figures.running -= 1,
            Phase::Done => return,
        }
        if self.life == books.life {
            books.cache.release(&self.held);
        }
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
