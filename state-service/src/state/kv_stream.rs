//! One rank's event stream: numbered batches that may be lost, come again, or begin anew, made into what an index may believe.
//!
//! ```text
//!   Unheard ─connected─► Asking ─end─► Following ─gap, connected again, idle check─► Asking
//!                          └─failed, late, ring too short─► Following, cold: the slot was cleared
//! ```
//! What is asked to repair a cold slot, or because nothing was heard for a while, costs nothing when it fails: only a known loss does.
//! A source that is gone, or away for longer than [`LINK_AWAY_MAX`], leaves nothing to be believed in (`away.rs`).
//! A slot holds the truth, or less and is `cold`; never something that is gone. Batches are applied in the publisher's order only:
//! while a replay is asked for, live ones wait (so a live removal is applied after an older, replayed store). The same number with
//! other bytes is another life of the publisher: its `stamp`, a hash of the payload with its time, tells lives apart where numbers
//! cannot. Knows no sockets, no encodings and no blocks; time is an argument.

mod asking;
mod away;
mod joined;
mod said;
mod silence;
#[cfg(test)]
mod tests;

pub use away::{LINK_AWAY_MAX, Link, Trouble};
pub use joined::{Reach, Unfit};
pub use said::{Attempt, Count, Effect, Frame, Input, ReplayFailure};
pub use silence::Cause;

use super::kv_event::{KvBatch, KvEvent};
pub(super) use asking::weight;
use asking::{Asking, More, Retry};
use away::{Replays, Way};
use routing::time::{Millis, Timestamp};
use std::collections::VecDeque;

/// Stamps remembered of the batches applied last: enough to know a repeated one.
pub(super) const RECENT_MAX: usize = 16;
/// After a connection is made, whatever was published before the subscription took hold is asked for once more.
const SETTLE: Millis = Millis(1000);
/// A stream on which nothing comes is compared with the publisher's ring this often: a lost last batch has no successor to show it.
const IDLE_CHECK: Millis = Millis(30_000);

/// One rank's stream.
#[derive(Debug, Default)]
pub struct KvStream {
    /// Number of the next batch to apply; `None`: whatever comes.
    next: Option<u64>,
    /// Newest live number of this connection.
    newest_live: Option<u64>,
    recent: VecDeque<(u64, u64)>,
    /// The batch that came last, unless it was passed over: more of it may come.
    open: Option<Open>,
    asking: Option<Asking>,
    attempt: Attempt,
    cold: bool,
    retry: Retry,
    /// When to compare with the ring next.
    check_at: Option<Timestamp>,
    /// What became of the last replay asked for.
    replays: Replays,
    way: Way,
    heard: silence::Heard,
    /// While its replica joins others.
    kept: Option<joined::Kept>,
    /// The slot was taken over, and nothing that was heard here shows that its publisher still lives.
    unproved: bool,
}

impl KvStream {
    /// Takes one input.
    pub fn step(&mut self, now: Timestamp, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Connected => self.connected(now, out),
            Input::Link(link) => self.linked(now, link, out),
            Input::Gone => self.gone(out),
            Input::Dropped { again } => self.dropped(now, again, out),
            Input::Live(frame) => self.live(now, frame, out),
            Input::Replayed(attempt, frame) => self.replayed(now, attempt, frame, out),
            Input::More { seq, batch } => self.more(now, seq, batch, out),
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
        if !self.way.open() {
            return;
        }
        self.newest_live = None;
        self.check_at = Some(now + SETTLE);
        // What waited came by the connection before: the replay brings it again, if it is still true.
        match self.cold {
            false => self.ask(now, Doubt::Epoch, VecDeque::new(), out),
            // All of it, and what is held now among it.
            true => {
                out.push(Effect::Clear);
                self.begin_at_0();
                self.ask(now, Doubt::Gap, VecDeque::new(), out);
            }
        }
    }

    fn live(&mut self, now: Timestamp, frame: Frame, out: &mut Vec<Effect>) {
        if self.way.is_closed() {
            return self.pass_over(frame.seq, Count::SourceGone, out);
        }
        self.open = Some(Open { seq: frame.seq, live: true });
        self.heard.batch(now, &frame.batch);
        self.check_at = Some(now + IDLE_CHECK);
        if self.newest_live.is_some_and(|newest| frame.seq <= newest) {
            if self.stamp(frame.seq) == Some(frame.stamp) {
                self.pass_over(frame.seq, Count::Duplicate, out);
            } else {
                self.begin_epoch(now, Some(frame), out);
            }
            return;
        }
        self.newest_live = Some(frame.seq);
        match &mut self.asking {
            Some(asking) if asking.is_disproved_by(frame.seq) => self.begin_epoch(now, Some(frame), out),
            Some(asking) => {
                let seq = frame.seq;
                if !asking.hold(frame) {
                    self.pass_over(seq, Count::HeldDropped, out);
                }
            }
            None => self.follow(now, frame, out),
        }
    }

    /// More of a batch shares what became of its beginning.
    fn more(&mut self, now: Timestamp, seq: u64, batch: KvBatch, out: &mut Vec<Effect>) {
        let Some(open) = self.open.filter(|open| open.seq == seq && !self.way.is_closed()) else { return };
        self.heard.more(now, open.live, &batch);
        let asking = self.asking.as_mut().filter(|_| open.live);
        match asking.map(|asking| asking.hold_more(seq, &batch)) {
            Some(More::Held) => {}
            Some(More::Dropped) => self.pass_over(seq, Count::HeldDropped, out),
            Some(More::NotHeld) | None => {
                self.kept.iter_mut().for_each(|kept| kept.more(seq, &batch));
                self.take_in(batch, out);
            }
        }
    }

    /// A batch is not taken, whole as it is.
    fn pass_over(&mut self, seq: u64, why: Count, out: &mut Vec<Effect>) {
        self.open.take_if(|open| open.seq == seq);
        out.push(Effect::Count(why));
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
                None if self.unproved => self.begin_epoch(now, Some(frame), out),
                // Forward on one connection: a replay was faster.
                _ => self.pass_over(frame.seq, Count::Duplicate, out),
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
        self.begin_at_0();
        self.cold = false;
    }

    /// The slot was cleared, and everything from the first batch on is to come; until it has, a cold slot is one.
    fn begin_at_0(&mut self) {
        self.recent.clear();
        self.kept.iter_mut().for_each(joined::Kept::clear);
        self.next = Some(0);
    }

    fn apply(&mut self, frame: Frame, out: &mut Vec<Effect>) {
        self.next = Some(frame.seq.saturating_add(1));
        self.unproved = false;
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((frame.seq, frame.stamp));
        // At its first batch a publisher has nothing, and neither has the slot: every way here with number 0 cleared it.
        self.cold &= frame.seq != 0;
        out.push(Effect::Count(Count::Applied));
        self.kept.iter_mut().for_each(|kept| kept.add(frame.clone()));
        self.take_in(frame.batch, out);
    }

    fn take_in(&mut self, batch: KvBatch, out: &mut Vec<Effect>) {
        // Cleared caches are empty on both sides.
        if batch.events.iter().any(|event| matches!(event, KvEvent::Cleared)) {
            self.cold = false;
        }
        out.push(Effect::Apply(batch));
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
        self.kept.iter_mut().for_each(joined::Kept::clear);
        out.extend([Effect::Count(Count::Cold), Effect::Clear]);
    }

    fn dropped(&mut self, now: Timestamp, again: bool, out: &mut Vec<Effect>) {
        let held = self.asking.take().map(Asking::into_held).unwrap_or_default();
        self.go_cold(out);
        if again && self.replays != Replays::None && !self.way.is_closed() {
            self.ask(now, Doubt::Repair, held, out);
        } else {
            self.go_on(held, out);
        }
    }

    fn tick(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        self.leave(now, out);
        if !self.cold {
            // Made whole by its publisher, with a first batch or a clear.
            self.retry = Retry::default();
        }
        if self.asking.as_ref().is_some_and(|asking| asking.is_late(now)) {
            let attempt = self.attempt;
            self.replay_failed(now, attempt, ReplayFailure::Broken, out);
        } else if self.asking.is_none() && self.retry.is_due(now) {
            self.ask(now, Doubt::Repair, VecDeque::new(), out);
        } else if self.asking.is_none() && self.check_at.is_some_and(|at| now >= at) {
            self.check_at = Some(now + IDLE_CHECK);
            // What would repair a cold slot tells as much.
            let doubt = if self.retry.is_planned() { Doubt::Repair } else { Doubt::Idle };
            if self.next.is_some() && self.replays != Replays::None {
                self.ask(now, doubt, VecDeque::new(), out);
            }
        }
    }
}

/// A batch of which more may come.
#[derive(Clone, Copy, Debug)]
struct Open {
    seq: u64,
    /// Or replayed: those never wait.
    live: bool,
}

/// What a replay has to settle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// Which batches were lost.
    Gap,
    /// That too, and whether this is still the publisher it was.
    Epoch,
    /// The same of a connection that stands, where nothing is known to be lost.
    Idle,
    /// Nothing: what a cold slot has is true, and everything from the first batch on takes its place.
    Repair,
}

impl Doubt {
    /// Whether the publisher must show the batch that was applied last.
    const fn wants_proof(self) -> bool {
        matches!(self, Self::Epoch | Self::Idle)
    }

    /// Whether what is held stays true if no answer comes.
    const fn is_harmless(self) -> bool {
        matches!(self, Self::Idle | Self::Repair)
    }
}
