//! What a state does as one of several replicas: its holds become claims that all replicas know, and what only it heard is noted for
//! the others.
//!
//! Owns which holds are claimed, how the answer to a claim changes one, and what is told of load and response ids. Knows no store: the
//! shell carries claims and notes to it and back.

use super::State;
use super::binding::Slot;
use super::replicated::Binding;
use super::sessions::Owner;
use super::vms::{Freshness, VmId};
use routing::contract::{Caller, InFlight, RouteReply, SessionRef, Target};
use routing::id::{HoldId, PoolName, RequestId, SessionId, Version};
use routing::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

/// A VM's load is told again after so long though nothing changed: its lease with the others is three times that.
const LOAD_TOLD_AGAIN: Millis = Millis::from_secs(5);
/// Most load and response ids noted at a time; the rest is noted next time.
pub const NOTES_MAX: usize = 256;
/// Most response ids that wait to be noted. Past it the oldest is not told: its next turn at another replica is a first one.
pub(super) const ALIASES_UNTOLD_MAX: usize = 16_384;

/// Most ends of requests that wait to be noted. Past it the oldest is not told: the hold it had elsewhere lives until its VM was not
/// heard there for a lease, and what was booked there until the booking's own end.
const ENDS_UNTOLD_MAX: usize = 4096;

/// A request ended without an answer that counts here, and what it named is not here: another replica may have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndElsewhere {
    /// Who made the request.
    pub caller: Caller,
    /// Its session.
    pub session: SessionId,
    /// The request.
    pub request: RequestId,
    /// The hold that it named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldId>,
}

/// What replicas tell each other beside bindings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Note {
    /// What a VM said that it has in flight: absolute, the newest by its own number counts.
    Load {
        /// The VM.
        caller: Caller,
        /// Its number.
        seq: u64,
        /// Slot by slot.
        in_flight: Vec<InFlight>,
    },
    /// A VM is dead, as another one of its Envoy said.
    Gone {
        /// The VM.
        caller: Caller,
    },
    /// A request ended at another replica than it was placed at: it owns no hold any more.
    Ended(EndElsewhere),
    /// A request whose prompt was booked at another replica is over.
    Freed {
        /// Who made the request.
        caller: Caller,
        /// The request.
        request: RequestId,
    },
    /// A response id is an answer of a session.
    Alias {
        /// The response id, hashed.
        alias: SessionId,
        /// The session.
        session: SessionRef,
        /// Its pool.
        pool: PoolName,
    },
    /// What a replica's requests load slots with: absolute, the newest by its own number counts.
    Carried {
        /// Its life.
        replica: u64,
        /// Its number.
        seq: u64,
        /// Slot by slot; none of those that did not change.
        slots: Vec<super::kv::Carried>,
    },
    /// A replica joins, and asks for an index of caches.
    IndexWanted,
    /// Where one may be read.
    IndexAt {
        /// Of the data listener, as others reach it.
        address: String,
    },
    /// Something a newer replica tells; left alone.
    #[serde(other)]
    Unknown,
}

/// How a state stands with its like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// It is the only one.
    #[default]
    Single,
    /// It is one of several, and hears of the others.
    Together,
    /// It is one of several, and hears nothing: new sessions go where every one of them would place them.
    Apart,
}

/// What is to be done before an answer goes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claiming {
    /// Nothing: it holds nothing, or all replicas know of it as it is answered.
    Nothing,
    /// All replicas know of it by now, elsewhere or under another version: the question is to be asked again.
    Outdated,
    /// It is to be claimed.
    Propose(Proposal),
}

/// A hold that no replica has claimed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The hold.
    pub hold: HoldId,
    /// What a commit of it will bind.
    pub binding: Binding,
    /// The record that it leaves: a session that is bound elsewhere since is not claimed.
    pub leaves: Option<Version>,
}

impl State {
    /// What is to be done before an answer goes out that holds something.
    #[must_use]
    pub fn claiming(&self, session: SessionRef, reply: &RouteReply) -> Claiming {
        let known = self.sessions.by_id(session.id);
        let held = known.and_then(|known| known.hold.as_ref()).filter(|hold| Some(hold.id) == reply.hold);
        let Some(hold) = held else {
            // Its hold gave way between the answer and now.
            return if reply.hold.is_some() { Claiming::Outdated } else { Claiming::Nothing };
        };
        let Some(worker) = self.workers.by_hash(hold.slot.worker) else { return Claiming::Outdated };
        let target = Some(worker.target(hold.slot));
        let as_answered = hold.version == reply.version && target == reply.target;
        match (as_answered, hold.claimed) {
            (true, true) => Claiming::Nothing,
            (false, _) => Claiming::Outdated,
            (true, false) => Claiming::Propose(Proposal {
                hold: hold.id,
                leaves: known.and_then(|known| known.record).map(|record| record.version),
                binding: Binding {
                    session,
                    version: hold.version,
                    target,
                    expires_in_ms: Millis(1),
                    generation: worker.generation,
                },
            }),
        }
    }

    /// Whether that hold goes on.
    #[must_use]
    pub fn is_held(&self, session: SessionId, hold: HoldId) -> bool {
        let known = self.sessions.by_id(session).and_then(|known| known.hold.as_ref());
        known.is_some_and(|held| held.id == hold)
    }

    /// All replicas know where the session is held: there, under that version, whoever claimed it. A slot that cannot serve here is
    /// not taken over: its own hold goes on, and whose binding is the newer one will be seen.
    pub(super) fn claimed(&mut self, session: SessionRef, hold: HoldId, claim: &Binding) {
        let place = claim.target.as_ref().and_then(|target| self.known_slot(target));
        if !self.plausible(claim.version) {
            return;
        }
        self.clock = self.clock.max(claim.version.seq);
        // A claim that is not above what is bound here is of a hold that is committed by now, and the store was not told yet: whoever
        // took that over would hold the session under the version of its binding, which no commit ends.
        let Some(known) = self.sessions.by_id(session.id) else { return };
        if known.record.is_some_and(|record| record.version >= claim.version) {
            return;
        }
        let claimed = self.sessions.edit(session.id, session.rank_hash, |known| {
            let Some(held) = known.hold.as_mut().filter(|held| held.id == hold) else { return false };
            held.claimed = true;
            if let Some(slot) = place {
                held.slot = slot;
                held.version = claim.version;
            }
            true
        });
        self.counters.holds_claimed += u64::from(claimed);
    }

    fn known_slot(&self, target: &Target) -> Option<Slot> {
        let worker = self.workers.by_id(&target.worker)?;
        (worker.is_usable() && worker.has_rank(target.rank)).then(|| worker.slot_of(target.rank))
    }

    /// Claims that live, at most `max` from a session on; and the session to go on from.
    #[must_use]
    pub fn claims(&self, from: SessionId, max: usize) -> (Vec<(SessionId, Version)>, Option<SessionId>) {
        let mut held = self.sessions.held_from(from);
        let claimed = |id: SessionId| {
            let hold = self.sessions.by_id(id)?.hold.as_ref().filter(|hold| hold.claimed)?;
            Some((id, hold.version))
        };
        let claims = held.by_ref().take(max).filter_map(claimed).collect();
        (claims, held.next())
    }

    /// A request that owned nothing here ended here: whoever holds something for it is told.
    pub(super) fn note_end(&mut self, owner: Owner, session: SessionId, hold: Option<HoldId>) {
        let end = |caller| Note::Ended(EndElsewhere { caller, session, request: owner.request, hold });
        self.end_untold(owner.vm, end);
    }

    /// A request that booked nothing here is over: whoever booked its prompt is told.
    pub(super) fn note_freed(&mut self, vm: VmId, request: RequestId) {
        self.end_untold(vm, |caller| Note::Freed { caller, request });
    }

    /// An end for others to hear, if there are any, of a caller that is known here.
    fn end_untold(&mut self, vm: VmId, end: impl FnOnce(Caller) -> Note) {
        if self.sharing == Sharing::Single {
            return;
        }
        let Some(end) = self.vms.caller_of(vm).cloned().map(end) else { return };
        self.ends_untold.push_back(end);
        if self.ends_untold.len() > ENDS_UNTOLD_MAX {
            self.ends_untold.pop_front();
        }
    }

    /// What the others should hear: loads that changed or were not told for a while, response ids learned here.
    pub(super) fn take_notes(&mut self, now: Timestamp) -> Vec<Note> {
        let mut notes: Vec<Note> = self.gone_untold.drain(..).map(|caller| Note::Gone { caller }).collect();
        let ends = self.ends_untold.len().min(NOTES_MAX);
        notes.extend(self.ends_untold.drain(..ends));
        let loads = self.vms.take_untold(now, LOAD_TOLD_AGAIN, NOTES_MAX);
        for (caller, seq, in_flight) in loads {
            let told = |(slot, count): (Slot, u32)| {
                let worker = self.workers.by_hash(slot.worker)?;
                Some(InFlight { target: worker.target(slot), count })
            };
            let in_flight = in_flight.into_iter().filter_map(told).collect();
            notes.push(Note::Load { caller, seq, in_flight });
        }
        notes.extend(self.carried_untold(now, NOTES_MAX.saturating_sub(notes.len())));
        while notes.len() < NOTES_MAX
            && let Some((alias, session, pool)) = self.aliases_untold.pop_front()
        {
            notes.push(Note::Alias { alias, session, pool });
        }
        notes
    }

    /// What another replica heard.
    pub(super) fn take_note(&mut self, now: Timestamp, note: Note) {
        match note {
            Note::Load { caller, seq, in_flight } => {
                let vm = self.vms.told_of(now, &caller, self.config.limits.vms_max);
                self.counters.vms_refused += u64::from(vm.is_none());
                let taken = vm.map(|vm| self.take_in_flight(now, vm, seq, &in_flight));
                self.counters.reports_old += u64::from(taken == Some(Freshness::Old));
                vm.into_iter().for_each(|vm| self.vms.told_by_another(vm, seq));
            }
            Note::Gone { caller } => {
                let dead = self.vms.buried(&caller, &mut self.workers);
                dead.into_iter().for_each(|dead| self.bury_vm(dead));
            }
            Note::Ended(EndElsewhere { caller, session, request, hold }) => {
                if let Some(vm) = self.vms.id_of(&caller) {
                    self.end_of(Owner { vm, request }, self.held_as(now, session), hold);
                }
            }
            Note::Freed { caller, request } => {
                let vm = self.vms.id_of(&caller);
                if let Some(vm) = vm.filter(|_| self.is_booked(vm, request)) {
                    self.ended(now, vm, request);
                }
            }
            Note::Alias { alias, session, pool } => self.learn_alias(now, alias, session, &pool),
            Note::Carried { replica, seq, slots } => self.take_carried(now, (replica, seq), &slots),
            // The shell's.
            Note::IndexWanted | Note::IndexAt { .. } | Note::Unknown => {}
        }
    }
}
