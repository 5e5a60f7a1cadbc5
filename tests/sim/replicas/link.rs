//! A replica's calls of the store: a message there, a message back, a deadline, and what becomes of the connection.
//!
//! As `state-service/src/store/link.rs`: a call that gets no answer in time may have been done all the same, even later than a call made
//! after it; the connection is given up, and calls fail at once until there is another.

use crate::faults::Fault;
use crate::replicas::Life;
use crate::replicas::claims::Asking;
use crate::replicas::hear::Hearing;
use crate::replicas::model::{Claim, Entry};
use crate::replicas::tell::Telling;
use crate::service::Standing;
use crate::world::{Event, World};
use routing::contract::SessionRef;
use routing::id::{HoldId, SessionId, Version};
use routing::time::Millis;
use state_service::state::{Binding, Note, Position};
use std::collections::{BTreeMap, VecDeque};

/// A call is answered by then.
const DEADLINE: u64 = 200;
/// So long a follower waits for news.
const FOLLOW_WAIT: u64 = 5000;
/// A call.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Claim(Binding, Option<Version>),
    Renew(Vec<(SessionId, Version)>),
    Unclaim(Vec<(SessionId, Version)>),
    Merge { bindings: Vec<Binding>, notes: Vec<Note> },
    Follow { cursor: u64 },
    Snapshot,
    Read(Vec<SessionId>),
    Beat,
}

/// What the store answers.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Done,
    Claim(Claim),
    /// `None`: a gap.
    Followed(Option<(Vec<Entry>, u64)>),
    Snapshot(u64, Vec<SessionId>),
    Page(Vec<Binding>),
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Away,
    Deadline,
    Lost,
}

/// What a call was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    Claim { asker: (u64, u64), session: SessionRef, hold: HoldId, version: Version },
    Tell,
    Hear,
    Nothing,
}

/// One replica's side of the store.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// Calls get through, as far as it knows.
    pub(crate) calls_up: bool,
    /// And the connection that waits for news.
    pub(crate) waits_up: bool,
    /// Nothing gets through between it and the store.
    pub(crate) cut: bool,
    /// The store's memory that an answer told of last.
    pub(crate) memory: Option<u64>,
    pub(crate) pending: BTreeMap<u64, (Wants, bool)>,
    /// It knows what the others know, or does not wait for that any more.
    pub(crate) ready: bool,
    pub(crate) over: VecDeque<(SessionId, Version)>,
    pub(crate) notes: Vec<Note>,
    pub(crate) noted: u64,
    pub(crate) position: Position,
    pub(crate) retell: bool,
    pub(crate) telling: Telling,
    pub(crate) hearing: Hearing,
    pub(crate) asking: BTreeMap<(u64, u64), Asking>,
}

impl World {
    pub(crate) fn is_linked(&self) -> bool {
        self.service.link.calls_up && self.service.link.waits_up
    }

    /// Whether a message between the replica at hand and the store would arrive.
    pub(super) fn is_store_there(&self) -> bool {
        self.store_standing == Standing::Up && !self.service.link.cut
    }

    pub(crate) fn ask_store(&mut self, wants: Wants, ask: Ask) -> u64 {
        let (call, life) = (self.new_call(), self.service.life);
        let waits = matches!(ask, Ask::Follow { .. });
        self.service.link.pending.insert(call, (wants, waits));
        let up = if waits { self.service.link.waits_up } else { self.service.link.calls_up };
        if !up {
            self.fired.count(Fault::StoreAway);
            self.after(0, Event::StoreAnswered { life, call, answer: Err(Failure::Away) });
            return call;
        }
        let deadline = if waits { FOLLOW_WAIT + DEADLINE } else { DEADLINE };
        self.after(deadline, Event::StoreAnswered { life, call, answer: Err(Failure::Deadline) });
        let net = self.net();
        if self.rng.per_mille(net.store_lost) {
            self.fired.count(Fault::StoreCallLost);
            return call;
        }
        let late = self.rng.per_mille(net.store_late);
        let delay = if late { self.rng.within(100, 1500) } else { self.rng.within(1, 2) };
        if late {
            self.fired.count(Fault::StoreCallLate);
        }
        self.after(delay, Event::StoreArrives { life, call, ask: Box::new(ask) });
        call
    }

    /// At the store: done whether or not somebody still waits for the answer.
    pub(crate) fn store_arrives(&mut self, life: Life, call: u64, ask: Ask) {
        let reached = self.store_standing == Standing::Up && !self.replica(life.replica).link.cut;
        if !reached {
            return;
        }
        // Of an earlier life it may still come, under that life's name.
        let writer = if self.lives(life) { self.replica(life.replica).state.epoch().0 } else { 0 };
        let now = self.now;
        let answer = match ask {
            Ask::Claim(proposal, leaves) => Answer::Claim(self.store.claim(now, &proposal, leaves)),
            Ask::Renew(claims) => {
                self.store.renew(now, &claims);
                Answer::Done
            }
            Ask::Unclaim(claims) => {
                self.store.unclaim(now, &claims);
                Answer::Done
            }
            Ask::Merge { bindings, notes } => {
                if self.store.merge(now, self.bug, writer, &bindings, &notes) {
                    self.wake_followers();
                }
                Answer::Done
            }
            Ask::Follow { cursor } => return self.follow_at_store(life, call, cursor, false),
            Ask::Snapshot => {
                let (cursor, ids) = self.store.sessions();
                Answer::Snapshot(cursor, ids)
            }
            Ask::Read(ids) => Answer::Page(self.store.read(now, &ids)),
            Ask::Beat => Answer::Done,
        };
        self.answer_of_store(life, call, answer);
    }

    /// News, or nothing new once the wait is over.
    pub(crate) fn follow_at_store(&mut self, life: Life, call: u64, cursor: u64, waited: bool) {
        let followed = self.store.follow(self.now, cursor);
        let nothing = followed.as_ref().is_some_and(|(entries, _)| entries.is_empty());
        if nothing && !waited {
            self.followers.push((life, call, cursor));
            return self.after(FOLLOW_WAIT, Event::FollowHeld { call });
        }
        self.answer_of_store(life, call, Answer::Followed(followed));
    }

    pub(crate) fn follow_held(&mut self, call: u64) {
        let Some(at) = self.followers.iter().position(|(_, held, _)| *held == call) else { return };
        let (life, call, cursor) = self.followers.remove(at);
        self.follow_at_store(life, call, cursor, true);
    }

    pub(crate) fn wake_followers(&mut self) {
        for (life, call, cursor) in std::mem::take(&mut self.followers) {
            self.follow_at_store(life, call, cursor, false);
        }
    }

    fn answer_of_store(&mut self, life: Life, call: u64, answer: Answer) {
        let net = self.net();
        if self.store_standing != Standing::Up || self.replica(life.replica).link.cut {
            return;
        }
        if self.rng.per_mille(net.store_reply_lost) {
            return self.fired.count(Fault::StoreReplyLost);
        }
        let (delay, memory) = (self.rng.within(1, 2), self.store.memory);
        self.after(delay, Event::StoreAnswered { life, call, answer: Ok((Box::new(answer), memory)) });
    }

    pub(crate) fn store_answered(
        &mut self,
        life: Life,
        call: u64,
        answer: Result<(Box<Answer>, u64), Failure>,
    ) {
        if !self.lives(life) {
            return;
        }
        let Some((wants, waits)) = self.service.link.pending.remove(&call) else { return };
        let answer = answer.map(|(answer, memory)| {
            self.service.link.memory = Some(memory);
            *answer
        });
        if matches!(answer, Err(Failure::Deadline)) {
            self.lose_connection(waits);
        }
        self.store_told(call, wants, answer);
    }

    pub(super) fn store_told(&mut self, call: u64, wants: Wants, answer: Result<Answer, Failure>) {
        match wants {
            Wants::Claim { asker, session, hold, version } => {
                self.claim_answered((asker, call), session, hold, version, answer);
            }
            Wants::Tell => self.told_store(&answer),
            Wants::Hear => self.heard_store(answer),
            Wants::Nothing => {}
        }
    }

    pub(crate) const fn patience_of_claim(deadline: Millis) -> u64 {
        let half = deadline.0 / 2;
        if half < 150 { half } else { 150 }
    }
}
