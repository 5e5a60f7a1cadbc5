//! One rank's event stream: numbered batches that may be lost, come again, or begin anew, made into what an index may believe.
//!
//! ```text
//!   Unheard ─connected─► Asking ─end─► Following ─gap, connected again, idle check─► Asking
//!                          └─failed, late, ring too short─► Following, cold: the slot was cleared
//! ```
//! A slot holds the truth, or less and is `cold`; never something that is gone. Batches are applied in the publisher's order only:
//! while a replay is asked for, live ones wait (so a live removal is applied after an older, replayed store). The same number with
//! other bytes is another life of the publisher: its `stamp`, a hash of the payload with its time, tells lives apart where numbers
//! cannot. Knows no sockets, no encodings and no blocks; time is an argument.

mod asking;
mod silence;
#[cfg(test)]
mod tests;

pub use silence::{Cause, Link};

use super::kv_event::{KvBatch, KvEvent};
use asking::{Asking, Retry};
use routing::time::{Millis, Timestamp};
use std::collections::VecDeque;

/// Stamps remembered of the batches applied last: enough to know a repeated one.
const RECENT_MAX: usize = 16;
/// After a connection is made, whatever was published before the subscription took hold is asked for once more.
const SETTLE: Millis = Millis(1000);
/// A stream on which nothing comes is compared with the publisher's ring this often: a lost last batch has no successor to show it.
const IDLE_CHECK: Millis = Millis(30_000);

/// One batch as it was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its number, from 0 in each life of the publisher.
    pub seq: u64,
    /// Hash of its payload: with the number it tells whether two frames are one.
    pub stamp: u64,
    /// What it says.
    pub batch: KvBatch,
}

/// Which of the replays asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt(pub u32);

/// Something that happened to the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A connection was made, for the first time or again: what was published before is not known.
    Connected,
    /// A live batch.
    Live(Frame),
    /// A replayed batch.
    Replayed(Attempt, Frame),
    /// The replay is complete.
    ReplayEnd(Attempt),
    /// The replay broke off, or could not begin.
    ReplayFailed(Attempt, ReplayFailure),
    /// The rank answered so many requests.
    Served(u32),
    /// Time passes.
    Tick,
}

/// Whether asking again may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayFailure {
    /// The publisher has no replay socket, or none is known.
    Unavailable,
    /// No connection, or it broke, or it said nothing in time.
    Broken,
}

/// What to do about it, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Apply to the slot.
    Apply(KvBatch),
    /// Forget everything of the slot.
    Clear,
    /// Ask the publisher for everything from a number on; one asked for before is of no interest any more.
    AskReplay {
        /// Bears the answers.
        attempt: Attempt,
        /// First number wanted.
        from: u64,
    },
    /// Count it.
    Count(Count),
}

/// What is counted of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Count {
    /// Batches applied.
    Applied,
    /// Batches that had been applied already.
    Duplicate,
    /// Numbers left out by the live stream.
    Gap,
    /// Publishers that began anew.
    Epoch,
    /// Replays asked for.
    ReplayAsked,
    /// Batches that a replay brought.
    Replayed,
    /// Replays that did not go back far enough.
    RingShort,
    /// Replays that broke off, did not begin, or were late.
    ReplayFailed,
    /// Answers to a replay that is of no interest any more.
    ReplayLate,
    /// Live batches dropped because too many waited for a replay; another replay brings them.
    HeldDropped,
    /// Times a slot went cold.
    Cold,
}

impl Count {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 11] = [
        Self::Applied,
        Self::Duplicate,
        Self::Gap,
        Self::Epoch,
        Self::ReplayAsked,
        Self::Replayed,
        Self::RingShort,
        Self::ReplayFailed,
        Self::ReplayLate,
        Self::HeldDropped,
        Self::Cold,
    ];

    /// Its name in metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Duplicate => "duplicate",
            Self::Gap => "gap",
            Self::Epoch => "epoch",
            Self::ReplayAsked => "replay_asked",
            Self::Replayed => "replayed",
            Self::RingShort => "ring_short",
            Self::ReplayFailed => "replay_failed",
            Self::ReplayLate => "replay_late",
            Self::HeldDropped => "held_dropped",
            Self::Cold => "cold",
        }
    }
}

/// One rank's stream.
#[derive(Debug, Default)]
pub struct KvStream {
    /// Number of the next batch to apply; `None`: whatever comes.
    next: Option<u64>,
    /// Newest live number of this connection.
    newest_live: Option<u64>,
    recent: VecDeque<(u64, u64)>,
    asking: Option<Asking>,
    attempt: Attempt,
    cold: bool,
    retry: Retry,
    /// When to compare with the ring next.
    check_at: Option<Timestamp>,
    heard: silence::Heard,
}

impl KvStream {
    /// Takes one input.
    pub fn step(&mut self, now: Timestamp, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Connected => self.connected(now, out),
            Input::Live(frame) => self.live(now, frame, out),
            Input::Replayed(attempt, frame) => self.replayed(now, attempt, frame, out),
            Input::ReplayEnd(attempt) => self.replay_end(now, attempt, out),
            Input::ReplayFailed(attempt, failure) => self.replay_failed(now, attempt, failure, out),
            Input::Served(count) => self.heard.served(now, count),
            Input::Tick => self.tick(now, out),
        }
    }

    /// Whether the slot may hold less than the publisher does.
    #[must_use]
    pub const fn is_cold(&self) -> bool {
        self.cold
    }

    /// Whether live batches wait for a replay.
    #[must_use]
    pub const fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    /// Number of the last batch applied.
    #[must_use]
    pub fn last_seq(&self) -> Option<u64> {
        self.next.and_then(|next| next.checked_sub(1))
    }

    fn connected(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        self.newest_live = None;
        self.check_at = Some(now + SETTLE);
        // What waited came by the connection before: the replay brings it again, if it is still true.
        self.ask(now, Doubt::Epoch, VecDeque::new(), out);
    }

    fn live(&mut self, now: Timestamp, frame: Frame, out: &mut Vec<Effect>) {
        self.heard.batch(now, &frame.batch);
        self.check_at = Some(now + IDLE_CHECK);
        if self.newest_live.is_some_and(|newest| frame.seq <= newest) {
            if self.stamp(frame.seq) == Some(frame.stamp) {
                out.push(Effect::Count(Count::Duplicate));
            } else {
                self.begin_epoch(now, Some(frame), out);
            }
            return;
        }
        self.newest_live = Some(frame.seq);
        match &mut self.asking {
            Some(asking) if asking.is_disproved_by(frame.seq) => self.begin_epoch(now, Some(frame), out),
            Some(asking) => asking.hold(frame, out),
            None => self.follow(now, frame, out),
        }
    }

    /// A live batch while nothing is asked for.
    fn follow(&mut self, now: Timestamp, frame: Frame, out: &mut Vec<Effect>) {
        match self.next {
            // Cold, and nothing better is to be had.
            None if self.cold => self.apply(frame, out),
            None if frame.seq == 0 => self.apply(frame, out),
            Some(next) if frame.seq == next => self.apply(frame, out),
            Some(next) if frame.seq < next => match self.stamp(frame.seq) {
                Some(stamp) if stamp != frame.stamp => self.begin_epoch(now, Some(frame), out),
                // Forward on one connection: a replay was faster.
                _ => out.push(Effect::Count(Count::Duplicate)),
            },
            None | Some(_) => {
                out.push(Effect::Count(Count::Gap));
                self.ask(now, Doubt::Gap, VecDeque::from([frame]), out);
            }
        }
    }

    /// The publisher began anew. Without a batch numbered 0 its ring must tell what came before.
    fn begin_epoch(&mut self, now: Timestamp, frame: Option<Frame>, out: &mut Vec<Effect>) {
        out.extend([Effect::Count(Count::Epoch), Effect::Clear]);
        let held = self.asking.take().map(Asking::into_held).unwrap_or_default();
        self.forget_numbers();
        self.newest_live = frame.as_ref().map(|frame| frame.seq).or(held.back().map(|frame| frame.seq));
        match frame {
            Some(frame) if frame.seq == 0 => self.apply(frame, out),
            // What waited before a step backwards is of the life that ended.
            Some(frame) => self.ask(now, Doubt::Gap, VecDeque::from([frame]), out),
            None => self.ask(now, Doubt::Gap, held, out),
        }
    }

    fn forget_numbers(&mut self) {
        self.recent.clear();
        self.next = Some(0);
        self.cold = false;
    }

    fn apply(&mut self, frame: Frame, out: &mut Vec<Effect>) {
        self.next = Some(frame.seq.saturating_add(1));
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((frame.seq, frame.stamp));
        // At its first batch a publisher has nothing, and neither has the slot: every way here with number 0 cleared it. Cleared
        // caches are empty on both sides, too.
        if frame.seq == 0 || frame.batch.events.iter().any(|event| matches!(event, KvEvent::Cleared)) {
            self.cold = false;
        }
        out.extend([Effect::Count(Count::Applied), Effect::Apply(frame.batch)]);
    }

    fn stamp(&self, seq: u64) -> Option<u64> {
        let applied = self.recent.iter().find(|(of, _)| *of == seq).map(|(_, stamp)| *stamp);
        applied.or_else(|| self.asking.as_ref()?.held_stamp(seq))
    }

    /// The slot knows nothing; goes on with whatever comes.
    fn go_cold(&mut self, out: &mut Vec<Effect>) {
        self.cold = true;
        self.next = None;
        self.recent.clear();
        out.extend([Effect::Count(Count::Cold), Effect::Clear]);
    }

    fn tick(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        if self.asking.as_ref().is_some_and(|asking| asking.is_late(now)) {
            let attempt = self.attempt;
            self.replay_failed(now, attempt, ReplayFailure::Broken, out);
        } else if self.asking.is_none() && self.retry.is_due(now) {
            // From the start: a cold slot may become a whole one.
            out.push(Effect::Clear);
            self.forget_numbers();
            self.ask(now, Doubt::Gap, VecDeque::new(), out);
        } else if self.asking.is_none() && self.check_at.is_some_and(|at| now >= at) {
            self.check_at = Some(now + IDLE_CHECK);
            if self.next.is_some() {
                self.ask(now, Doubt::Epoch, VecDeque::new(), out);
            }
        }
    }
}

/// What a replay has to settle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// Which batches were lost.
    Gap,
    /// That too, and whether this is still the publisher it was.
    Epoch,
}
