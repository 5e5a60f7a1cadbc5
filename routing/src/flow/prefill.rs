//! The prefill half of a request in a split pool: a slot of its own, bound on its own, told to the engine that decodes.
//!
//! The half that answers is decided as in any pool; this half is decided before it. A request whose prefill half finds nobody
//! goes on without one: its decode worker prefills itself.

use super::decide::{found_now, joined};
use super::finish::{self, fail, touch};
use super::place::{self, Choice, Slot};
use super::{Effect, Env, Head, Here, PageChange, Pending, RequestFlow, choose, reference};
use crate::contract::{Affinity, Cached, Outcome, Policy, PrefillAsk, RouteReply};
use crate::directory::Pool;
use crate::id::RequestId;
use crate::page::{Certainty, Record};
use crate::session::Session;
use crate::vm::Vm;

/// A prefill slot, chosen.
#[derive(Debug)]
pub(super) struct Half {
    slot: Slot,
    pending: Option<Pending>,
}

/// A prefill slot that the service is asked for.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) session: Session,
    pub(super) request: RequestId,
    pub(super) cached: Option<Record>,
}

/// The prefill half cannot be chosen here.
pub(super) struct Asks;

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
    /// Chooses the prefill half of a turn with a session, if that can be done here: from the cache, or where nothing is kept.
    pub(super) fn choose_prefill(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Result<(), Asks> {
        let Some(here) = here.prefill() else { return Ok(()) };
        let Some(session) = here.turn.prefill.filter(|_| keeps(here.pool)) else {
            self.prefill = unkept(env, here, head);
            return Ok(());
        };
        let record = found_now(env, head, session);
        match place::from_record(here, record.as_ref(), env.vm.generation, env.now) {
            Choice::Bound(slot, record) if choose::serves_now(env, here, &slot) => {
                touch(env, here.pool, session, &record, out);
                self.prefill = Some(Half { slot, pending: None });
                Ok(())
            }
            Choice::Held(slot, record) if choose::keeps(here, &slot) => {
                let request = env.vm.next_request();
                let pending = joined(session, here.pool.name.clone(), request, &record);
                self.prefill = Some(Half { slot, pending: Some(pending) });
                Ok(())
            }
            Choice::Bound(..) | Choice::Held(..) | Choice::Unknown => Err(Asks),
        }
    }

    /// The prefill half of a turn that asks nobody.
    pub(super) fn prefill_alone(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) {
        if self.prefill.is_some() || self.choose_prefill(env, here, head, out).is_ok() {
            return;
        }
        let Some(here) = here.prefill() else { return };
        let Some(session) = here.turn.prefill else { return };
        let record = found_now(env, head, session);
        let request = env.vm.next_request();
        self.prefill = by_rendezvous(env, here, session, request, record);
    }

    /// What is asked about the prefill half; nothing where it is decided, or where there is none.
    pub(super) fn prefill_wanted(
        &self,
        env: &mut Env<'_>,
        here: Here<'_>,
        head: &impl Head,
    ) -> Option<Wanted> {
        let here = here.prefill().filter(|here| self.prefill.is_none() && keeps(here.pool))?;
        let session = here.turn.prefill?;
        let (request, cached) = (env.vm.next_request(), found_now(env, head, session));
        Some(Wanted { session, request, cached })
    }

    /// The service's answer about the prefill half, or its absence.
    pub(super) fn prefill_told(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        wanted: Option<Wanted>,
        reply: Option<&RouteReply>,
        out: &mut Vec<Effect>,
    ) {
        let Some((wanted, here)) = wanted.zip(here.prefill()) else { return };
        let Wanted { session, request, cached } = wanted;
        let told =
            reply.and_then(|reply| Some((reply, place::from_target(here, reply.target.as_ref()?, session)?)));
        let Some((reply, slot)) = told else {
            if matches!(reply.map(|reply| reply.outcome), None | Some(Outcome::Held)) {
                // It may have made a hold that nobody will use.
                fail(env.vm, reference(session), here.pool.name.clone(), request, None, out);
            }
            self.prefill = by_rendezvous(env, here, session, request, cached);
            return;
        };
        let certainty = match reply.outcome {
            Outcome::Held => Some(Certainty::Held),
            Outcome::Bound => Some(Certainty::Bound),
            _ => None,
        };
        if let Some(certainty) = certainty {
            let record = finish::record(env, session, &slot, reply.version, certainty);
            out.push(Effect::Page(PageChange::Put(record)));
        }
        let pending = (reply.outcome == Outcome::Held).then(|| Pending {
            session,
            pool: here.pool.name.clone(),
            request,
            hold: reply.hold,
            version: reply.version,
            cached: true,
        });
        self.prefill = Some(Half { slot, pending });
    }

    /// Tells the decode engine who prefills, and counts it there.
    pub(super) fn tell_prefill(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        out: &mut Vec<Effect>,
    ) -> Option<Half> {
        let names = &env.config.prefill_headers;
        let half = self.prefill.take();
        let told = half.as_ref().and_then(|half| {
            let worker = here.directory.workers.get(half.slot.at)?;
            let endpoint = worker.endpoint(half.slot.rank, half.slot.hash)?;
            let rank = endpoint.number(worker, half.slot.rank);
            (!endpoint.address.is_empty()).then(|| (endpoint.address.clone(), rank))
        });
        let Some((address, rank)) = told else {
            if here.pool.prefill.is_some() {
                // Nobody prefills: what a client says of it must not count.
                out.push(Effect::RemoveHeader(names.host_port.clone().into()));
                out.push(Effect::RemoveHeader(names.rank.clone().into()));
            }
            return None;
        };
        out.push(Effect::SetHeader(names.host_port.clone().into(), address));
        out.push(match rank {
            Some(rank) => Effect::SetHeader(names.rank.clone().into(), rank.to_string()),
            None => Effect::RemoveHeader(names.rank.clone().into()),
        });
        if let Some(half) = &half {
            env.vm.loads.add(half.slot.hash, half.slot.rank);
        }
        half
    }
}

impl Half {
    /// The answer's head came: the prefill is done. What it held is committed if the answer was accepted, and is nobody's else.
    pub(super) fn answered(self, env: &mut Env<'_>, accepted: bool, out: &mut Vec<Effect>) {
        if accepted {
            env.vm.loads.remove(self.slot.hash, self.slot.rank);
            if let Some(pending) = self.pending {
                let target =
                    crate::contract::Target { worker: self.slot.worker.clone(), rank: self.slot.rank };
                finish::commit(env, &self.slot, pending, target, out);
            }
        } else {
            self.ended(env.vm, out);
        }
    }

    /// The request ended before it was placed: nothing counts it yet.
    pub(super) fn ended_unplaced(self, vm: &mut Vm, out: &mut Vec<Effect>) {
        if let Some(pending) = self.pending {
            finish::roll_back(vm, pending, out);
        }
    }

    /// The request ended before an answer.
    pub(super) fn ended(self, vm: &mut Vm, out: &mut Vec<Effect>) {
        vm.loads.remove(self.slot.hash, self.slot.rank);
        if let Some(pending) = self.pending {
            finish::roll_back(vm, pending, out);
        }
    }
}

impl Wanted {
    /// The question.
    pub(super) fn question(&self, vm: &Vm) -> PrefillAsk {
        let bound = self.cached.filter(|record| record.certainty == Certainty::Bound);
        PrefillAsk {
            request: self.request,
            session: Some(reference(self.session)),
            cached: bound.map(|r| Cached { worker_hash: r.worker_hash, rank: r.rank, version: r.version }),
            named: None,
            unsent: vm.reports.about(self.session.id),
        }
    }
}

/// Where nothing is kept: by the pool's policy.
fn unkept(env: &mut Env<'_>, here: Here<'_>, head: &impl Head) -> Option<Half> {
    let hashes = here.pool.rules.policy == Policy::SessionHash && here.pool.affinity != Affinity::Off;
    let slot = match here.turn.prefill.filter(|_| hashes) {
        Some(session) => choose::by_hash(here, session),
        None => choose::spread(env, here, head),
    };
    slot.ok().map(|slot| Half { slot, pending: None })
}

fn by_rendezvous(
    env: &Env<'_>,
    here: Here<'_>,
    session: Session,
    request: RequestId,
    cached: Option<Record>,
) -> Option<Half> {
    let slot = choose::alone(here, session).ok()?;
    let version = env.vm.version_after(cached.map(|record| record.version));
    let pool = here.pool.name.clone();
    let pending = Pending { session, pool, request, hold: None, version, cached: false };
    Some(Half { slot, pending: Some(pending) })
}
