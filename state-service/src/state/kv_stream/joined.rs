//! A slot taken over from another replica: what it holds is true up to a number, and what came here since goes on top of it.
//!
//! While a replica joins, each stream keeps the batches it applied last. What is taken over must fit to them: no number missing in
//! between, and no number that is another batch here, which would be another life of the publisher. What does not fit is not taken.

use super::asking::weight;
use super::{Attempt, Frame, KvStream, RECENT_MAX, Retry, SETTLE};
use crate::state::kv_event::KvBatch;
use routing::time::Timestamp;
use std::collections::VecDeque;

/// What kept batches may weigh (tokens and hashes) of one rank; past it the oldest go.
const KEPT_WEIGHT_MAX: usize = 1 << 17;

/// How far a slot is: all that was published before `next` is in it, or it is `cold`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Number after the last batch in it.
    pub next: u64,
    /// Numbers and stamps of the last of these, at most [`RECENT_MAX`].
    pub recent: Vec<(u64, u64)>,
    /// Whether something may be missing.
    pub cold: bool,
}

/// Why a slot was not taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unfit {
    /// Its worker, or its rank, is not declared here, or in another pool, or at another address.
    Unknown,
    /// Nothing connects this replica with its publisher: whether it still lives is not known.
    NotConnected,
    /// It is whole here already.
    Known,
    /// Batches between it and what was heard here are missing.
    Behind,
    /// A number that is another batch here: its publisher began anew.
    OtherLife,
    /// Its blocks are of another size than its pool's.
    OtherBlockSize,
    /// It is being read or taken over by another, or changed meanwhile.
    Busy,
    /// It says something that cannot be.
    Malformed,
}

impl Unfit {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Unknown,
        Self::NotConnected,
        Self::Known,
        Self::Behind,
        Self::OtherLife,
        Self::OtherBlockSize,
        Self::Busy,
        Self::Malformed,
    ];

    /// Its name in metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::NotConnected => "not_connected",
            Self::Known => "known",
            Self::Behind => "behind",
            Self::OtherLife => "other_life",
            Self::OtherBlockSize => "other_block_size",
            Self::Busy => "busy",
            Self::Malformed => "malformed",
        }
    }
}

/// Batches applied last, in order.
#[derive(Debug, Default)]
pub(super) struct Kept {
    frames: VecDeque<Frame>,
    weight: usize,
}

impl Kept {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn add(&mut self, frame: Frame) {
        self.weight += weight(&frame.batch);
        self.frames.push_back(frame);
        self.trim();
    }

    /// More of the batch that was added last.
    pub(super) fn more(&mut self, seq: u64, batch: &KvBatch) {
        if let Some(last) = self.frames.back_mut().filter(|frame| frame.seq == seq) {
            self.weight += weight(batch);
            last.batch.events.extend_from_slice(&batch.events);
            self.trim();
        }
    }

    fn trim(&mut self) {
        while self.weight > KEPT_WEIGHT_MAX
            && let Some(oldest) = self.frames.pop_front()
        {
            self.weight = self.weight.saturating_sub(weight(&oldest.batch));
        }
    }
}

impl KvStream {
    /// Keeps what it applies, or no longer.
    pub fn keep(&mut self, keep: bool) {
        match keep {
            true => drop(self.kept.get_or_insert_default()),
            false => self.kept = None,
        }
    }

    /// How far its slot is, while that is beyond doubt.
    #[must_use]
    pub fn reach(&self) -> Option<Reach> {
        let doubted = self.asking.as_ref().is_some_and(|asking| !asking.is_harmless());
        let next = self.next.filter(|_| self.is_listened_to() && !doubted)?;
        Some(Reach { next, recent: self.recent.iter().copied().collect(), cold: self.cold })
    }

    /// Whether a slot that was read from another replica could be taken over.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn fits(&self, reach: &Reach) -> Result<(), Unfit> {
        self.newer(reach).map(drop)
    }

    /// The slot has less than its batches say.
    pub const fn lacks(&mut self) {
        self.cold = true;
    }

    /// Takes over a slot that was read from another replica: what is to be applied to it then. Whoever calls empties the slot first.
    /// Parts of a batch must not be under way.
    ///
    /// # Errors
    /// [`Unfit`]; nothing changed.
    pub fn take_over(&mut self, now: Timestamp, reach: &Reach) -> Result<Vec<KvBatch>, Unfit> {
        let (newer, proved) = self.newer(reach)?;
        let stamps = newer.iter().map(|frame| (frame.seq, frame.stamp));
        let mut recent: VecDeque<(u64, u64)> = reach.recent.iter().copied().chain(stamps).collect();
        while recent.len() > RECENT_MAX {
            recent.pop_front();
        }
        self.next = newer.last().map_or(Some(reach.next), |frame| frame.seq.checked_add(1));
        (self.recent, self.cold, self.open, self.asking) = (recent, reach.cold, None, None);
        // Answers to what was asked before are of no interest any more.
        self.attempt = Attempt(self.attempt.0.wrapping_add(1));
        if !self.cold {
            self.retry = Retry::default();
        }
        self.unproved = !proved;
        // A publisher that replays is asked whether it is the one that was read of.
        self.check_at = Some(now + SETTLE);
        Ok(newer.into_iter().map(|frame| frame.batch).collect())
    }

    /// What was heard here beyond it, and whether that shows the same publisher.
    fn newer(&self, reach: &Reach) -> Result<(Vec<Frame>, bool), Unfit> {
        let asking = self.asking.as_ref().filter(|asking| !asking.is_harmless());
        if !self.is_listened_to() || (self.next.is_none() && asking.is_none() && !self.cold) {
            return Err(Unfit::NotConnected);
        }
        if !self.cold && asking.is_none() {
            return Err(Unfit::Known);
        }
        let kept = self.kept.iter().flat_map(|kept| &kept.frames);
        let held = self.asking.iter().flat_map(|asking| asking.held());
        beyond(reach, kept.chain(held))
    }
}

/// Of batches that were heard, in order: those beyond `reach`, and whether one of them is known there.
fn beyond<'a>(reach: &Reach, heard: impl Iterator<Item = &'a Frame>) -> Result<(Vec<Frame>, bool), Unfit> {
    let (mut next, mut newer, mut proved, mut older) = (reach.next, Vec::new(), false, false);
    for frame in heard {
        match reach.recent.iter().find(|(seq, _)| *seq == frame.seq) {
            Some((_, stamp)) if *stamp != frame.stamp => return Err(Unfit::OtherLife),
            Some(_) => proved = true,
            None if frame.seq > next => return Err(Unfit::Behind),
            None if frame.seq == next => {
                next = next.saturating_add(1);
                newer.push(frame.clone());
            }
            None => older = true,
        }
    }
    // Low numbers alone may as well be those of a publisher that began anew.
    if older && !proved { Err(Unfit::OtherLife) } else { Ok((newer, proved)) }
}
