//! What this VM decides alone: pinned and joined turns, turns without a session, refusals.
//!
//! Everything that needs the fleet's knowledge goes to `ask`.

use super::ask::Question;
use super::choose::Nobody;
use super::place::{Choice, Slot};
use super::{
    Binding, Counter, Effect, Env, Head, Here, LocalReply, Next, Pending, Placed, Placement, RequestFlow,
    State, choose, finish, named, place, response,
};
use crate::contract::{Affinity, OnAllOverloaded, OnOverload, Policy, Refusal};
use crate::id::{PoolName, RequestId};
use crate::page::{self, Record};
use crate::session::Session;
use crate::time::Millis;
use crate::vm::Avoid;

/// Why a bound turn cannot go home now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Barred {
    /// Its worker was just unreachable.
    Unreachable,
    /// Its slot is overloaded, or said for how long it is busy.
    Overloaded(Option<Millis>),
}

impl RequestFlow {
    pub(super) fn decide(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        if here.turn.dry_run {
            return self.ask_dry(env, here, head, out);
        }
        if here.turn.alias.is_some() && here.pool.affinity != Affinity::Off {
            return self.ask_alias(env, here, head, out);
        }
        if let Some(target) = &here.turn.named {
            return self.named_turn(env, here, target, head, out);
        }
        let session = match (here.turn.session, here.pool.affinity) {
            (Some(session), Affinity::Hard | Affinity::Soft) => session,
            (Some(_), Affinity::Off) => return self.unpinned(env, here, head, Counter::AffinityOff, out),
            (None, _) => return self.unpinned(env, here, head, Counter::SessionKeyMissing, out),
        };
        if matches!(here.pool.rules.policy, Policy::SessionHash) {
            return self.hashed(env, here, session, head, out);
        }
        let record = found_now(env, head, session);
        let choice = place::from_record(here, record.as_ref(), env.vm.generation, env.now);
        if let Choice::Bound(slot, _) = &choice
            && here.pool.affinity == Affinity::Hard
            && !choose::keeps(here, slot)
        {
            return self.refuse(
                named::refusal(here.pool.phase, Refusal::Excluded),
                Counter::NamedRefused,
                out,
            );
        }
        let asks_prefill = self.choose_prefill(env, here, head, out).is_err();
        match choice {
            Choice::Bound(slot, record)
                if !asks_prefill && choose::keeps(here, &slot) && choose::stays(env, here, &slot) =>
            {
                self.pinned(env, here, session, slot, record, head, out)
            }
            Choice::Held(slot, record) if !asks_prefill && choose::keeps(here, &slot) => {
                self.join(env, here, session, slot, &record, head, out)
            }
            Choice::Bound(..) | Choice::Held(..) | Choice::Unknown => {
                self.ask(env, here, Question::plain(session, record), head, out)
            }
        }
    }

    /// A turn under `session_hash`.
    fn hashed(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        session: Session,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let home = match choose::by_hash(here, session) {
            Ok(home) => home,
            Err(nobody) => return self.nobody(here, nobody, out),
        };
        self.prefill_alone(env, here, head, out);
        let placement = |slot, why| Placement {
            session: Some(session),
            slot,
            why,
            pending: None,
            version: None,
            exact: false,
        };
        let Some(barred) = barred(env, here, &home) else {
            return self.place(env, here, placement(home, Counter::SessionHash), head, out);
        };
        if let Some(refused) = self.refused_here(here, barred, out) {
            return refused;
        }
        let (slot, why) = self.home_or_spill(env, here, session, home, head, Counter::SessionHash);
        self.or_all_overloaded(env, here, placement(slot, why), barred, head, out)
    }

    /// A turn whose slot is in the cache. The usual one.
    #[expect(clippy::too_many_arguments, reason = "one step of one machine, on the hottest path")]
    fn pinned(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        session: Session,
        slot: Slot,
        record: Record,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let exact = here.pool.rules.policy == Policy::Direct;
        let version = Some(record.version);
        let placement =
            |slot, why| Placement { session: Some(session), slot, why, pending: None, version, exact };
        let barred = if exact { None } else { barred(env, here, &slot) };
        let Some(barred) = barred else {
            finish::touch(env, here.pool, session, &record, out);
            return self.place(env, here, placement(slot, Counter::Pinned), head, out);
        };
        if let Some(refused) = self.refused_here(here, barred, out) {
            return refused;
        }
        if barred == Barred::Overloaded(None) && here.pool.on_overload == OnOverload::Wait {
            let question = Question { wait: here.pool.wait, ..Question::plain(session, Some(record)) };
            return self.ask(env, here, question, head, out);
        }
        finish::touch(env, here.pool, session, &record, out);
        let (slot, why) = self.home_or_spill(env, here, session, slot, head, Counter::Pinned);
        self.or_all_overloaded(env, here, placement(slot, why), barred, head, out)
    }

    /// The 429 of a pool that refuses rather than serving a bound turn elsewhere.
    fn refused_here(&mut self, here: Here<'_>, barred: Barred, out: &mut Vec<Effect>) -> Option<Next> {
        let Barred::Overloaded(busy) = barred else { return None };
        (here.pool.on_overload == OnOverload::Refuse)
            .then(|| self.refuse(LocalReply::overloaded(busy), Counter::OverloadRefused, out))
    }

    /// A turn that stayed at its overloaded slot because every other is overloaded too: refused, if the pool refuses then.
    fn or_all_overloaded(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        placement: Placement,
        barred: Barred,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let Barred::Overloaded(busy) = barred else { return self.place(env, here, placement, head, out) };
        let stayed = placement.why != Counter::Spilled;
        if stayed && here.pool.on_all_overloaded == OnAllOverloaded::Refuse {
            return self.refuse(LocalReply::overloaded(busy), Counter::OverloadRefused, out);
        }
        self.place(env, here, placement, head, out)
    }

    /// Elsewhere this once, if there is another place.
    pub(super) fn home_or_spill(
        &self,
        env: &mut Env<'_>,
        here: Here<'_>,
        session: Session,
        home: Slot,
        head: &impl Head,
        why: Counter,
    ) -> (Slot, Counter) {
        let elsewhere = choose::spill(env, here, session, &home, head);
        elsewhere.map_or((home, why), |slot| (slot, Counter::Spilled))
    }

    /// A turn beside a first turn that is not answered yet: the same slot.
    #[expect(clippy::too_many_arguments, reason = "one step of one machine")]
    fn join(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        session: Session,
        slot: Slot,
        record: &Record,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let request = env.vm.next_request();
        let pending = joined(session, here.pool.name.clone(), request, record);
        let exact = here.pool.rules.policy == Policy::Direct;
        let (session, why) = (Some(session), Counter::Joined);
        let placement = Placement { session, slot, why, pending: Some(pending), version: None, exact };
        self.place(env, here, placement, head, out)
    }

    pub(super) fn unpinned(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        head: &impl Head,
        why: Counter,
        out: &mut Vec<Effect>,
    ) -> Next {
        if here.pool.rules.policy == Policy::Direct {
            return self.refuse(
                named::refusal(here.pool.phase, Refusal::WorkerRequired),
                Counter::NamedRefused,
                out,
            );
        }
        match choose::spread(env, here, head) {
            Ok(slot) => {
                self.prefill_alone(env, here, head, out);
                let placement =
                    Placement { session: None, slot, why, pending: None, version: None, exact: false };
                self.place(env, here, placement, head, out)
            }
            Err(nobody) => self.nobody(here, nobody, out),
        }
    }

    pub(super) fn place(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        placement: Placement,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let surface = here.turn.surface;
        let carried = place::carried(env.config.steering, here, &placement.slot, surface);
        let plan = place::steer(env, here, &placement, surface, out);
        let prefill = self.tell_prefill(env, here, out);
        let Placement { session, slot, pending, why, version, .. } = placement;
        env.vm.loads.add(slot.hash, carried);
        out.push(Effect::Count(why));
        // Wanted at the end only by a turn that is the session's last.
        let bound = |session| Some(Binding { session, pool: here.pool.name.clone(), version: version? });
        let ends = session.filter(|_| here.turn.last);
        self.state = State::Placed(Box::new(Placed {
            carried,
            plan,
            binding: ends.and_then(bound),
            prefill,
            response: session.and_then(|session| response::watch(env, here, head, session)),
            accepted: false,
            last: here.turn.last,
            slot,
            pending,
            why,
        }));
        Next::Continue
    }

    pub(super) fn refuse(&mut self, reply: LocalReply, why: Counter, out: &mut Vec<Effect>) -> Next {
        self.state = State::Refused;
        out.push(Effect::Count(why));
        out.push(Effect::Note(place::unplaced(why)));
        out.push(Effect::Respond(reply));
        Next::Pause
    }

    /// Nobody serves: if there is no worker at all, the default route may still know one.
    pub(super) fn nobody(&mut self, here: Here<'_>, why: Nobody, out: &mut Vec<Effect>) -> Next {
        match why {
            Nobody::NoWorker => self.pass(Counter::NoWorker, out),
            Nobody::Unmet => {
                self.refuse(named::refusal(here.pool.phase, Refusal::Unmet), Counter::NamedRefused, out)
            }
            Nobody::Overloaded => self.refuse(LocalReply::overloaded(None), Counter::OverloadRefused, out),
        }
    }

    pub(super) fn pass(&mut self, why: Counter, out: &mut Vec<Effect>) -> Next {
        self.state = State::Passed;
        out.push(Effect::Count(why));
        place::strip(out);
        Next::Continue
    }
}

/// Why a bound turn had better not go home now.
fn barred(env: &Env<'_>, here: Here<'_>, home: &Slot) -> Option<Barred> {
    match env.vm.troubles.why(env.now, home.hash, home.rank) {
        Some(Avoid::Unreachable) => Some(Barred::Unreachable),
        Some(Avoid::Busy(left)) => Some(Barred::Overloaded(Some(left))),
        None => choose::is_overloaded(here, home).then_some(Barred::Overloaded(None)),
    }
}

/// What a turn commits that joined the hold of a cached record.
pub(super) fn joined(session: Session, pool: PoolName, request: RequestId, record: &Record) -> Pending {
    Pending { session, pool, request, hold: None, version: record.version, cached: false }
}

/// The session's record as the page has it now.
pub(super) fn found_now(env: &Env<'_>, head: &impl Head, session: Session) -> Option<Record> {
    let page = head.page(page::page_of(session.id, env.config.page_count))?;
    page::find(&page, session.id)
}
