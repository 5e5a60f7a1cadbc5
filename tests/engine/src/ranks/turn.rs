//! One prompt and its reply on a rank: which blocks it finds, holds, fills and gives back, and what is told of that. Knows tokens and
//! time; does not know HTTP.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{Finish, Rank, Ranks};
use crate::kv_events::Tokens;
use crate::prefix_cache::{BlockHash, CacheChange, Place};
use crate::space::Space;

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
    /// Admitted to the rank at this place.
    pub(super) fn waiting(ranks: Arc<Ranks>, index: usize) -> Self {
        let space = Arc::new(Space::new("", None, None));
        let (chain, held, tail) = (Vec::new(), Vec::new(), Vec::new());
        Self { ranks, index, phase: Phase::Waiting, space, chain, held, life: 0, tail }
    }

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
