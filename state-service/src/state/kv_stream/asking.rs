//! A replay that was asked for: what waits for it, what it must prove, and what becomes of the slot when it does not come.

use super::{Attempt, Count, Doubt, Effect, Frame, KvStream, Open, ReplayFailure, Replays};
use crate::state::kv_event::{KvBatch, KvEvent};
use routing::time::{Millis, Timestamp};
use std::collections::VecDeque;

/// A replay that is not over by then has failed. The shell gives up sooner on one that says nothing, but many may wait for a place.
pub(super) const REPLAY_MAX: Millis = Millis(30_000);
/// Live batches that wait, and what they may weigh (tokens and hashes: 4 or 8 bytes each); more are dropped, and asked for again.
pub(super) const HELD_MAX: usize = 1024;
pub(super) const HELD_WEIGHT_MAX: usize = 1 << 18;
/// Replays in a row that bring nothing new before the slot goes on cold.
pub(super) const FRUITLESS_MAX: u32 = 3;
/// A cold slot asks for everything again after so long, then twice as long, and so on.
const RETRY_FIRST: Millis = Millis(5000);
const RETRY_DOUBLINGS_MAX: u32 = 6;

#[derive(Debug)]
pub(super) struct Asking {
    from: u64,
    /// Number after the last one applied when it was asked for; the batch before it must be the one applied.
    known: u64,
    doubt: Doubt,
    proved: bool,
    fruitless: u32,
    began: Timestamp,
    held: VecDeque<Frame>,
    weight: usize,
}

impl Asking {
    /// A publisher that lived on does not number a new batch lower than one it has published.
    pub(super) fn is_disproved_by(&self, live: u64) -> bool {
        self.doubt.wants_proof() && live < self.known
    }

    pub(super) fn is_late(&self, now: Timestamp) -> bool {
        now.since(self.began) >= REPLAY_MAX
    }

    /// False: too many wait.
    pub(super) fn hold(&mut self, frame: Frame) -> bool {
        let weight = weight(&frame.batch);
        let has_room = self.held.len() < HELD_MAX && self.has_room(weight);
        if has_room {
            self.weight += weight;
            self.held.push_back(frame);
        }
        has_room
    }

    fn has_room(&self, weight: usize) -> bool {
        self.weight.saturating_add(weight) <= HELD_WEIGHT_MAX
    }

    /// More of the batch that waits last.
    pub(super) fn hold_more(&mut self, seq: u64, batch: &KvBatch) -> More {
        let weight = weight(batch);
        let has_room = self.has_room(weight);
        let Some(last) = self.held.back_mut().filter(|frame| frame.seq == seq) else { return More::NotHeld };
        if !has_room {
            self.held.pop_back();
            return More::Dropped;
        }
        self.weight += weight;
        last.batch.events.extend_from_slice(&batch.events);
        More::Held
    }

    pub(super) fn held_stamp(&self, seq: u64) -> Option<u64> {
        self.held.iter().find(|frame| frame.seq == seq).map(|frame| frame.stamp)
    }

    pub(super) const fn held(&self) -> &VecDeque<Frame> {
        &self.held
    }

    /// Whether what is held stays true if no answer comes.
    pub(super) const fn is_harmless(&self) -> bool {
        self.doubt.is_harmless()
    }

    pub(super) fn into_held(self) -> VecDeque<Frame> {
        self.held
    }

    const fn unproved(&self) -> bool {
        self.doubt.wants_proof() && !self.proved && self.known > 0
    }
}

/// What became of more of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    Held,
    /// It is too much, and its beginning goes, too.
    Dropped,
    /// Its beginning does not wait.
    NotHeld,
}

pub(in crate::state) fn weight(batch: &KvBatch) -> usize {
    let of = |event: &KvEvent| match event {
        KvEvent::Stored { hashes, tokens, .. } => hashes.len() + tokens.len(),
        KvEvent::Removed { hashes, .. } => hashes.len(),
        KvEvent::Cleared => 1,
    };
    batch.events.iter().map(of).sum()
}

/// When a cold slot asks again.
#[derive(Debug, Default)]
pub(super) struct Retry {
    at: Option<Timestamp>,
    doublings: u32,
}

impl Retry {
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.at.is_some_and(|at| now >= at)
    }

    pub(super) const fn is_planned(&self) -> bool {
        self.at.is_some()
    }

    fn later(&mut self, now: Timestamp) {
        self.at = Some(now + Millis(RETRY_FIRST.0 << self.doublings));
        self.doublings = (self.doublings + 1).min(RETRY_DOUBLINGS_MAX);
    }
}

impl KvStream {
    pub(super) fn ask(&mut self, now: Timestamp, doubt: Doubt, held: VecDeque<Frame>, out: &mut Vec<Effect>) {
        self.ask_again(now, doubt, held, 0, out);
    }

    fn ask_again(
        &mut self,
        now: Timestamp,
        doubt: Doubt,
        held: VecDeque<Frame>,
        fruitless: u32,
        out: &mut Vec<Effect>,
    ) {
        let known = match doubt {
            Doubt::Repair => 0,
            Doubt::Gap | Doubt::Epoch | Doubt::Idle => *self.next.get_or_insert(0),
        };
        // The batch before comes again: its stamp shows that the publisher is still the same.
        let from = known.saturating_sub(1);
        self.attempt = Attempt(self.attempt.0.wrapping_add(1));
        self.retry.at = None;
        let weight = held.iter().map(|frame| weight(&frame.batch)).sum();
        self.asking = Some(Asking { from, known, doubt, proved: false, fruitless, began: now, held, weight });
        out.extend([Effect::Count(Count::ReplayAsked), Effect::AskReplay { attempt: self.attempt, from }]);
    }

    pub(super) fn replayed(&mut self, now: Timestamp, attempt: Attempt, frame: Frame, out: &mut Vec<Effect>) {
        self.repair_begins(attempt, out);
        let known_stamp = self.recent.iter().find(|(seq, _)| *seq == frame.seq).map(|(_, stamp)| *stamp);
        let next = self.next.unwrap_or(0);
        self.open = None;
        let Some(asking) = self.asking.as_mut().filter(|_| attempt == self.attempt) else {
            out.push(Effect::Count(Count::ReplayLate));
            return;
        };
        if frame.seq < asking.from {
            // Nobody asked for it.
            out.push(Effect::Count(Count::Duplicate));
        } else if frame.seq < next {
            match known_stamp {
                Some(stamp) if stamp != frame.stamp => self.begin_epoch(now, None, out),
                known => {
                    asking.proved |= known.is_some();
                    out.push(Effect::Count(Count::Duplicate));
                }
            }
        } else {
            let hole = frame.seq > next || asking.unproved();
            asking.proved = true;
            asking.fruitless = 0;
            if hole {
                out.push(Effect::Count(Count::RingShort));
                self.go_cold(out);
            }
            out.push(Effect::Count(Count::Replayed));
            self.heard.replayed(&frame.batch);
            self.open = Some(Open { seq: frame.seq, live: false });
            self.apply(frame, out);
        }
    }

    /// The first batch of a whole replay takes the place of what the slot had.
    fn repair_begins(&mut self, attempt: Attempt, out: &mut Vec<Effect>) {
        let Some(asking) = self.asking.as_mut().filter(|asking| asking.doubt == Doubt::Repair) else {
            return;
        };
        if attempt == self.attempt {
            asking.doubt = Doubt::Gap;
            out.push(Effect::Clear);
            self.begin_at_0();
        }
    }

    pub(super) fn replay_end(&mut self, now: Timestamp, attempt: Attempt, out: &mut Vec<Effect>) {
        self.repair_begins(attempt, out);
        let Some(asking) = self.asking.take_if(|_| attempt == self.attempt) else {
            out.push(Effect::Count(Count::ReplayLate));
            return;
        };
        if asking.unproved() {
            // It has not even the batch that was applied last: a publisher that began anew.
            self.asking = Some(asking);
            return self.begin_epoch(now, None, out);
        }
        self.replay_settled(Replays::Work);
        if self.next == Some(0) {
            // Nothing was published: neither has the slot anything, nor its engine.
            self.cold = false;
        }
        if !self.cold {
            self.retry = Retry::default();
        }
        self.take_held(now, asking.held, asking.fruitless, out);
    }

    /// Applies what waited. What is missing before it is asked for, unless asking has brought nothing before.
    fn take_held(
        &mut self,
        now: Timestamp,
        mut held: VecDeque<Frame>,
        fruitless: u32,
        out: &mut Vec<Effect>,
    ) {
        while let Some(frame) = held.pop_front() {
            let next = self.next.unwrap_or(frame.seq);
            if frame.seq < next {
                if self.stamp(frame.seq).is_some_and(|stamp| stamp != frame.stamp) {
                    held.push_front(frame);
                    self.forget_life(now, held, fruitless, out);
                    return;
                }
                self.pass_over(frame.seq, Count::Duplicate, out);
            } else if frame.seq == next {
                self.apply(frame, out);
            } else if fruitless < FRUITLESS_MAX {
                held.push_front(frame);
                return self.ask_again(now, Doubt::Gap, held, fruitless + 1, out);
            } else {
                self.go_cold(out);
                self.apply(frame, out);
            }
        }
    }

    /// What waited is of another life than what was replayed.
    fn forget_life(&mut self, now: Timestamp, held: VecDeque<Frame>, fruitless: u32, out: &mut Vec<Effect>) {
        out.extend([Effect::Count(Count::Epoch), Effect::Clear]);
        self.forget_numbers();
        if fruitless < FRUITLESS_MAX {
            self.ask_again(now, Doubt::Gap, held, fruitless + 1, out);
        } else {
            self.go_on_cold(held, out);
        }
    }

    pub(super) fn replay_failed(
        &mut self,
        now: Timestamp,
        attempt: Attempt,
        failure: ReplayFailure,
        out: &mut Vec<Effect>,
    ) {
        let Some(asking) = self.asking.take_if(|_| attempt == self.attempt) else {
            out.push(Effect::Count(Count::ReplayLate));
            return;
        };
        out.push(Effect::Count(Count::ReplayFailed));
        self.replay_settled(failure.into());
        if !asking.doubt.is_harmless() {
            self.go_cold(out);
        }
        self.go_on(asking.held, out);
        if self.cold && failure != ReplayFailure::Unavailable {
            self.retry.later(now);
        }
    }

    fn go_on_cold(&mut self, held: VecDeque<Frame>, out: &mut Vec<Effect>) {
        self.go_cold(out);
        self.go_on(held, out);
    }

    /// Applies what waited, without what may be missing before it.
    pub(super) fn go_on(&mut self, held: VecDeque<Frame>, out: &mut Vec<Effect>) {
        for frame in held {
            if self.stamp(frame.seq) == Some(frame.stamp) {
                self.pass_over(frame.seq, Count::Duplicate, out);
                continue;
            }
            if self.next.is_some_and(|next| next != frame.seq) {
                self.go_cold(out);
            }
            self.apply(frame, out);
        }
    }
}
