//! The prefill half of a request in a split pool: a slot of its own, bound on its own.
//!
//! The half that answers is decided as in any pool; this half is decided before it. A request whose prefill half finds nobody
//! goes on without one: its decode worker prefills itself. What its caller named, though, is served there or refused, as in the
//! other half. Once chosen, it is `half`'s.

use super::decide::found_now;
use super::finish;
use super::half::Half;
use super::place::{self, Choice, Slot};
use super::seek::{alone, bound, held, unkept};
use super::spilled;
use super::{
    Binding, Effect, Env, Head, Here, Next, PageChange, Pending, RequestFlow, Turn, named, reference, spread,
};
use crate::contract::{Affinity, Cached, Entry, Outcome, Policy, PrefillAsk, Refusal, RouteReply};
use crate::directory::Pool;
use crate::hash::{self, Phase};
use crate::id::RequestId;
use crate::page::{Certainty, Record};
use crate::session::Session;
use crate::vm::Vm;

/// A prefill slot that the service is asked for.
#[derive(Debug)]
pub(super) struct Wanted {
    /// None of a turn that belongs to none.
    pub(super) session: Option<Session>,
    pub(super) request: RequestId,
    pub(super) cached: Option<Record>,
}

/// Why the prefill half is not chosen.
pub(super) enum Unchosen {
    /// Only the service can.
    Asks,
    /// The target that its caller named, or its binding, does not serve it.
    Refused(Refusal),
}

impl<'a> Here<'a> {
    /// The same for the prefill half, if the pool has one.
    fn prefill(self) -> Option<Here<'a>> {
        Some(Here { pool: self.pool.prefill.as_deref()?, ..self })
    }
}

/// Whether sessions of the pool keep what is chosen.
fn keeps(pool: &Pool) -> bool {
    pool.affinity != Affinity::Off && pool.rules.policy != Policy::SessionHash
}

impl RequestFlow {
    /// Chooses the prefill half, if that can be done here: from the cache, or where nothing is kept.
    pub(super) fn choose_prefill(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Result<(), Unchosen> {
        let target = here.turn.named_prefill.as_ref();
        let Some(here) = here.prefill() else {
            // Named where nobody does half a request.
            return target.map_or(Ok(()), |_| Err(Unchosen::Refused(Refusal::WorkerUnknown)));
        };
        if let Some(target) = target {
            named::known(here, target).map_err(Unchosen::Refused)?;
        }
        let Some(session) = here.turn.prefill.filter(|_| keeps(here.pool)) else {
            self.prefill = unkept(env, here, head).map_err(Unchosen::Refused)?;
            return Ok(());
        };
        let record = found_now(env, head, session);
        self.prefill = match place::from_record(here, record.as_ref(), env.vm.generation, env.now) {
            Choice::Bound(slot, record) => Some(bound(env, here, session, slot, &record, head, out)?),
            Choice::Held(slot, record) => Some(held(env, here, session, slot, &record)?),
            Choice::Unknown => return Err(Unchosen::Asks),
        };
        Ok(())
    }

    /// The prefill half of a turn that asks nobody.
    pub(super) fn prefill_alone(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        if self.prefill.is_some() {
            return Ok(());
        }
        match self.choose_prefill(env, here, head, out) {
            Ok(()) => return Ok(()),
            Err(Unchosen::Refused(why)) => return Err(why),
            Err(Unchosen::Asks) => {}
        }
        let Some((here, session)) = here.prefill().zip(here.turn.prefill) else { return Ok(()) };
        let request = env.vm.next_request();
        let cached = found_now(env, head, session);
        self.prefill = alone(env, here, (session, request), (cached, None), head, out)?;
        Ok(())
    }

    /// What is asked about the prefill half; nothing where it is decided, or where there is none.
    pub(super) fn prefill_wanted(
        &self,
        env: &mut Env<'_>,
        here: Here<'_>,
        head: &impl Head,
    ) -> Option<Wanted> {
        let here = here.prefill().filter(|_| self.prefill.is_none())?;
        let session = here.turn.prefill.filter(|_| keeps(here.pool) || here.turn.dry_run);
        if session.is_none() && !here.turn.dry_run && !here.pool.is_kv_aware() {
            return None;
        }
        let cached = session.and_then(|session| found_now(env, head, session));
        Some(Wanted { session, request: env.vm.next_request(), cached })
    }

    /// What the service said of the prefill half, or its silence: `reply` is the answer about both.
    pub(super) fn prefill_told(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        wanted: Option<Wanted>,
        (reply, head): (Option<&RouteReply>, &impl Head),
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let Some((wanted, half)) = wanted.zip(here.prefill()) else { return Ok(()) };
        let Some(session) = wanted.session else { return Ok(()) };
        let told = reply.and_then(|reply| reply.prefill.as_deref());
        if let Some(told) = told.filter(|told| told.outcome == Outcome::Refused) {
            let why = told.refusal.unwrap_or(Refusal::WorkerUnavailable);
            return if why == Refusal::Unmet { Ok(()) } else { Err(why) };
        }
        let found = found_now(env, head, session);
        let overtaken = told.is_some_and(|told| found.is_some_and(|found| found.version > told.version));
        let slot = told.filter(|_| !overtaken).and_then(|told| target(half, told, session));
        if let Some((told, slot)) = told.zip(slot) {
            spilled::forget_older(found, told, out);
            self.prefill = Some(as_told(env, half, (session, wanted.request), told, slot, out));
            return Ok(());
        }
        let (request, cached) = (wanted.request, found.or(wanted.cached));
        let chosen = match self.choose_prefill(env, here, head, out) {
            Err(Unchosen::Asks) => {
                alone(env, half, (session, request), (cached, told.map(|told| told.version)), head, out)
                    .map(|chosen| self.prefill = chosen)
            }
            Err(Unchosen::Refused(why)) => Err(why),
            Ok(()) => Ok(()),
        };
        let may_be_held = told.map_or(reply.is_none(), |told| told.outcome == Outcome::Held);
        if may_be_held && !self.owns(request) {
            disown(env.vm, half, session, request);
        }
        chosen
    }

    /// The same for a turn without a session.
    pub(super) fn prefill_spread(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        told: Option<&RouteReply>,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let slot =
            here.prefill().zip(told).and_then(|(half, told)| spread::slot(half, told.target.as_ref()?));
        match slot.filter(|_| self.prefill.is_none()) {
            Some(slot) => self.prefill = Some(Half::loose(slot)),
            None => self.prefill_alone(env, here, head, out)?,
        }
        Ok(())
    }

    /// Whether what is chosen answers for whatever that question is given.
    fn owns(&self, request: RequestId) -> bool {
        let pending = self.prefill.as_ref().and_then(|half| half.pending.as_ref());
        pending.is_some_and(|pending| pending.request == request)
    }

    /// The prefill half is not served, so the request is not.
    pub(super) fn refuse_prefill(&mut self, why: Refusal, out: &mut Vec<Effect>) -> Next {
        self.refuse_by(Phase::Prefill, why, out)
    }
}

impl Turn {
    /// It is a turn of this session, which no key names.
    pub(super) fn belongs(&mut self, session: Session, pool: &Pool) {
        self.session = Some(session);
        self.prefill = pool.prefill.is_some().then(|| prefill_of(session));
    }

    /// The same, of the session that the service found behind an alias, as far as its prefill half goes.
    pub(super) fn behind(self, pool: &Pool, reply: Option<&RouteReply>) -> Self {
        let found = reply.and_then(|reply| reply.session).filter(|_| self.alias.is_some());
        let found = found.filter(|_| pool.prefill.is_some());
        let prefill = found.map(|found| prefill_of(Session { id: found.id, rank_hash: found.rank_hash }));
        Self { prefill: prefill.or(self.prefill), ..self }
    }
}

/// The prefill half of a session of which nothing but its id is known.
fn prefill_of(session: Session) -> Session {
    let id = hash::response_id(Phase::Prefill.as_str().as_bytes(), b"", &session.id.0.to_le_bytes());
    Session { id, rank_hash: session.rank_hash }
}

impl Wanted {
    /// The question.
    pub(super) fn question(&self, here: Here<'_>, vm: &Vm) -> PrefillAsk {
        let bound = self.cached.filter(|record| record.certainty == Certainty::Bound);
        PrefillAsk {
            request: self.request,
            session: self.session.map(reference),
            cached: bound.map(|r| Cached { worker_hash: r.worker_hash, rank: r.rank, version: r.version }),
            named: here.turn.named_prefill.clone(),
            unsent: self.session.map(|session| vm.reports.about(session.id)).unwrap_or_default(),
        }
    }
}

/// Whatever hold the question got, or gets when it arrives at last, is nobody's.
fn disown(vm: &mut Vm, here: Here<'_>, session: Session, request: RequestId) {
    let pool = here.pool.name.clone();
    vm.reports.push(Entry::Failed { session: reference(session), pool, request, hold: None });
}

/// Where the service says it goes, if that is known here and is what its caller named.
fn target(here: Here<'_>, told: &RouteReply, session: Session) -> Option<Slot> {
    let slot = place::from_target(here, told.target.as_ref()?, session)?;
    let target = here.turn.named_prefill.as_ref();
    let wanted = target.is_none_or(|target| target.worker == slot.worker);
    wanted.then(|| named::exactly(here, slot, target))
}

fn as_told(
    env: &mut Env<'_>,
    here: Here<'_>,
    (session, request): (Session, RequestId),
    told: &RouteReply,
    slot: Slot,
    out: &mut Vec<Effect>,
) -> Half {
    let certainty = match told.outcome {
        Outcome::Held => Certainty::Held,
        Outcome::Bound => Certainty::Bound,
        _ => return Half { ends: spilled::ends(here, session, told), ..Half::loose(slot) },
    };
    let record = finish::record(env, session, &slot, told.version, certainty);
    out.push(Effect::Page(PageChange::Put(record)));
    let (pool, version) = (here.pool.name.clone(), told.version);
    if certainty == Certainty::Held {
        let pending = Pending { session, pool, request, hold: told.hold, version, cached: true };
        return Half { slot, pending: Some(pending), ends: None };
    }
    Half { slot, pending: None, ends: here.turn.last.then_some(Binding { session, pool, version }) }
}
