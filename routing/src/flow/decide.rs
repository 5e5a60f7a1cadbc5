//! What this VM decides alone: pinned and joined turns, refusals. Turns without a session are `spread`'s.
//!
//! Everything that needs the fleet's knowledge goes to `ask`.

use super::ask::Question;
use super::choose::Nobody;
use super::place::{Choice, Slot};
use super::prefill::Unchosen;
use super::{
    Binding, Counter, Effect, Env, Head, Here, LocalReply, Next, Pending, Placed, Placement, RequestFlow,
    State, choose, finish, named, place, response,
};
use crate::contract::{Affinity, OnAllOverloaded, OnOverload, Policy, Refusal};
use crate::hash::Phase;
use crate::id::{PoolName, RequestId};
use crate::page::{self, Certainty, Record};
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
            return self.refuse_by(here.pool.phase, Refusal::Excluded, out);
        }
        let asks_prefill = match self.choose_prefill(env, here, head, out) {
            Ok(()) => false,
            Err(Unchosen::Asks) => true,
            Err(Unchosen::Refused(why)) => return self.refuse_prefill(why, out),
        };
        match choice {
            Choice::Bound(slot, record)
                if !asks_prefill && choose::keeps(here, &slot) && choose::stays(env, here, &slot) =>
            {
                self.pinned(env, here, session, slot, record, head, out)
            }
            Choice::Held(slot, record) if !asks_prefill && choose::keeps(here, &slot) => {
                self.join(env, here, session, slot, &record, head, out)
            }
            choice @ (Choice::Bound(..) | Choice::Held(..) | Choice::Unknown) => {
                let unbound = asks_prefill || matches!(choice, Choice::Unknown);
                if unbound && self.must_read_prompt(env, here, head, out) {
                    return Next::Read;
                }
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
        if let Err(why) = self.prefill_alone(env, here, head, out) {
            return self.refuse_prefill(why, out);
        }
        let (session, why) = (Some(session), Counter::SessionHash);
        let placement = Placement { session, slot: home, why, pending: None, version: None, exact: false };
        self.go_home(env, here, placement, head, out)
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
        let waits = here.pool.on_overload == OnOverload::Wait && !exact;
        if waits && barred(env, here, &slot) == Some(Barred::Overloaded(None)) {
            let question = Question { wait: here.pool.wait, ..Question::plain(session, Some(record)) };
            return self.ask(env, here, question, head, out);
        }
        finish::touch(env, here.pool, session, &record, out);
        let (session, version) = (Some(session), Some(record.version));
        let placement = Placement { session, slot, why: Counter::Pinned, pending: None, version, exact };
        self.go_home(env, here, placement, head, out)
    }

    /// To the slot that is the session's own; if that is overloaded or was just unreachable, as the pool has it: elsewhere this
    /// once, or refused.
    pub(super) fn go_home(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        placement: Placement,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let whither = match placement.session.filter(|_| !placement.exact) {
            Some(session) => whither(env, here, session, &placement.slot, head),
            None => Whither::Home,
        };
        let placement = match whither {
            Whither::Home => placement,
            Whither::Elsewhere(slot) => Placement { slot, why: Counter::Spilled, ..placement },
            Whither::Nowhere(busy) => {
                return self.refuse(LocalReply::overloaded(busy), Counter::OverloadRefused, out);
            }
        };
        self.place(env, here, placement, head, out)
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
        let overlap = self.booked.as_ref().and_then(|booked| booked.overlap);
        let plan = place::steer(env, here, &placement, (surface, overlap), out);
        let prefill = self.tell_prefill(env, here, out);
        let Placement { session, slot, pending, why, version, .. } = placement;
        env.vm.loads.add(slot.hash, carried);
        out.push(Effect::Count(why));
        // Wanted at the end only by a turn that is the session's last.
        let bound = |session| Some(Binding { session, pool: here.pool.name.clone(), version: version? });
        let ends = session.filter(|_| here.turn.last);
        // A turn that spilled runs elsewhere than its session is bound.
        let runs = session.zip(version).filter(|_| why != Counter::Spilled);
        let running = runs.and_then(|(session, version)| {
            let record = finish::record(env, session, &slot, version, Certainty::Bound);
            env.vm.running.begin(record)
        });
        self.state = State::Placed(Box::new(Placed {
            carried,
            plan,
            running,
            binding: ends.and_then(bound),
            prefill,
            prefill_ends: None,
            response: session.and_then(|session| response::watch(env, here, head, session)),
            accepted: false,
            last: here.turn.last,
            slot,
            pending,
            why,
        }));
        Next::Continue
    }

    /// Refused for one of the reasons that the service has, too; `phase` is the half that is refused.
    pub(super) fn refuse_by(&mut self, phase: Phase, why: Refusal, out: &mut Vec<Effect>) -> Next {
        let overloaded = why == Refusal::Overloaded;
        let counter = if overloaded { Counter::OverloadRefused } else { Counter::NamedRefused };
        self.refuse(named::refusal(phase, why), counter, out)
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
            Nobody::Unmet => self.refuse_by(here.pool.phase, Refusal::Unmet, out),
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
        None => choose::is_overloaded(env, here, home).then_some(Barred::Overloaded(None)),
    }
}

/// Where a turn goes that has a slot of its own.
pub(super) enum Whither {
    /// There, also when nobody else is better off.
    Home,
    /// Elsewhere this once.
    Elsewhere(Slot),
    /// Nowhere: the pool refuses; for so long, if the engine said it.
    Nowhere(Option<Millis>),
}

/// Home, unless that is overloaded or was just unreachable: then as the pool has it.
pub(super) fn whither(
    env: &mut Env<'_>,
    here: Here<'_>,
    session: Session,
    home: &Slot,
    head: &impl Head,
) -> Whither {
    let busy = match barred(env, here, home) {
        None => return Whither::Home,
        Some(Barred::Unreachable) => None,
        Some(Barred::Overloaded(busy)) => Some(busy),
    };
    if let Some(busy) = busy
        && here.pool.on_overload == OnOverload::Refuse
    {
        return Whither::Nowhere(busy);
    }
    match (choose::spill(env, here, session, home, head), busy, here.pool.on_all_overloaded) {
        (Some(slot), _, _) => Whither::Elsewhere(slot),
        (None, Some(busy), OnAllOverloaded::Refuse) => Whither::Nowhere(busy),
        (None, _, _) => Whither::Home,
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
