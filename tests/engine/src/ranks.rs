//! The data-parallel ranks behind one port: which one a request goes to, how long it keeps it busy, what its
//! cache holds. Knows tokens and time; does not know HTTP.

mod turn;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::config::{EngineConfig, Kind};
use crate::kv_events::{self, Feed};
use crate::prefix_cache::{Copies, PrefixCache};
use crate::space::Space;

pub(crate) use self::turn::{Prefill, Turn};

/// Blocks of a prompt that nobody asked for.
const FILL_BLOCKS: u32 = 16;

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
        Turn::waiting(Arc::clone(self), index)
    }

    /// Has the rank at this place compute a prompt that nobody asked for and that is like no other.
    pub(crate) async fn fill(self: &Arc<Self>, index: usize) {
        let seen = self.ranks[index].books().figures.queried_tokens;
        let first = (seen as u32).wrapping_mul(2_654_435_761).wrapping_add(index as u32);
        let count = FILL_BLOCKS * self.block_size as u32;
        // The first one alone makes it another prompt; the rest are of a vocabulary's size.
        let rest = (1..count).map(|at| first.wrapping_add(at) % 50_000);
        let tokens: Vec<u32> = std::iter::once(first).chain(rest).collect();
        let mut turn = self.admit(Some(index));
        turn.prefill(&Arc::new(Space::new("fill", None, None)), &tokens).await;
        turn.finish(Finish::Stop, 0);
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

#[cfg(test)]
mod tests;
