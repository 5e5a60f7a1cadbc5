//! Which slot prefills, where this VM decides that alone: the binding in the cache, the policy of a pool that keeps nothing, and
//! what is left when the service is silent. The rules are those of the half that answers.
//!
//! Changes nothing but a binding's time of last use.

use super::decide::{Whither, joined, whither};
use super::finish::touch;
use super::half::Half;
use super::place::{self, Slot};
use super::prefill::Unchosen;
use super::{Binding, Effect, Env, Head, Here, Pending, choose, named};
use crate::contract::{Affinity, Policy, Refusal};
use crate::id::{RequestId, Version};
use crate::page::{Certainty, Record};
use crate::session::Session;

/// A binding that the cache has, as in the other half: refused where it is excluded, spilled where it is overloaded.
pub(super) fn bound(
    env: &mut Env<'_>,
    here: Here<'_>,
    session: Session,
    slot: Slot,
    record: &Record,
    head: &impl Head,
    out: &mut Vec<Effect>,
) -> Result<Half, Unchosen> {
    let target = here.turn.named_prefill.as_ref();
    if let Some(target) = target {
        if !named::agrees(here, target, &slot, record) || !choose::keeps(here, &slot) {
            return Err(Unchosen::Asks);
        }
    } else if !choose::keeps(here, &slot) && here.pool.affinity == Affinity::Hard {
        return Err(Unchosen::Refused(Refusal::Excluded));
    } else if !choose::keeps(here, &slot) || !choose::stays(env, here, &slot) {
        return Err(Unchosen::Asks);
    }
    at_home(env, here, session, slot, record, head, out).map_err(Unchosen::Refused)
}

/// At its binding, or elsewhere this once.
fn at_home(
    env: &mut Env<'_>,
    here: Here<'_>,
    session: Session,
    slot: Slot,
    record: &Record,
    head: &impl Head,
    out: &mut Vec<Effect>,
) -> Result<Half, Refusal> {
    touch(env, here.pool, session, record, out);
    let pool = here.pool.name.clone();
    let ends = here.turn.last.then_some(Binding { session, pool, version: record.version });
    let target = here.turn.named_prefill.as_ref();
    if target.is_some() || here.pool.rules.policy == Policy::Direct {
        return Ok(Half { slot: named::exactly(here, slot, target), pending: None, ends });
    }
    let slot = or_elsewhere(env, here, session, slot, head)?;
    Ok(Half { slot, pending: None, ends })
}

/// Home, unless it is overloaded or was just unreachable and another is better off.
fn or_elsewhere(
    env: &mut Env<'_>,
    here: Here<'_>,
    session: Session,
    home: Slot,
    head: &impl Head,
) -> Result<Slot, Refusal> {
    match whither(env, here, session, &home, head) {
        Whither::Home => Ok(home),
        Whither::Elsewhere(slot) => Ok(slot),
        Whither::Nowhere(_) => Err(Refusal::Overloaded),
    }
}

/// Beside a first turn that is not answered yet: the same slot.
pub(super) fn held(
    env: &mut Env<'_>,
    here: Here<'_>,
    session: Session,
    slot: Slot,
    record: &Record,
) -> Result<Half, Unchosen> {
    let target = here.turn.named_prefill.as_ref();
    let agrees = target.is_none_or(|target| named::agrees(here, target, &slot, record));
    if !agrees || !choose::keeps(here, &slot) {
        return Err(Unchosen::Asks);
    }
    let pending = joined(session, here.pool.name.clone(), env.vm.next_request(), record);
    Ok(Half { slot: named::exactly(here, slot, target), pending: Some(pending), ends: None })
}

/// Where nothing is kept: where its caller says, or by the pool's policy.
pub(super) fn unkept(env: &mut Env<'_>, here: Here<'_>, head: &impl Head) -> Result<Option<Half>, Refusal> {
    let session = here.turn.prefill.filter(|_| here.pool.affinity != Affinity::Off);
    if let Some(target) = &here.turn.named_prefill {
        let slot = named::slot(here, target, session).ok_or(Refusal::WorkerUnavailable)?;
        return if choose::keeps(here, &slot) { Ok(Some(Half::loose(slot))) } else { Err(Refusal::Excluded) };
    }
    let slot = match (here.pool.rules.policy, session) {
        (Policy::Direct, _) => return Err(Refusal::WorkerRequired),
        (Policy::SessionHash, Some(session)) => {
            let Ok(home) = choose::by_hash(here, session) else { return Ok(None) };
            or_elsewhere(env, here, session, home, head)?
        }
        _ => match choose::spread(env, here, head) {
            Ok(slot) => slot,
            Err(choose::Nobody::Overloaded) => return Err(Refusal::Overloaded),
            Err(choose::Nobody::NoWorker | choose::Nobody::Unmet) => return Ok(None),
        },
    };
    Ok(Some(Half::loose(slot)))
}

/// Without the service: at its binding, where its caller says, or by rendezvous.
pub(super) fn alone(
    env: &mut Env<'_>,
    here: Here<'_>,
    (session, request): (Session, RequestId),
    (cached, seen): (Option<Record>, Option<Version>),
    head: &impl Head,
    out: &mut Vec<Effect>,
) -> Result<Option<Half>, Refusal> {
    let home = place::home(here, session, cached);
    let target = here.turn.named_prefill.as_ref();
    if let Some((slot, record)) = &home {
        if target.is_some_and(|target| !named::agrees(here, target, slot, record)) {
            return Err(Refusal::BoundElsewhere);
        }
        if record.certainty == Certainty::Bound && record.idle(env.now) <= here.pool.ttl {
            return at_home(env, here, session, slot.clone(), record, head, out).map(Some);
        }
    }
    let slot = match (target, home) {
        (Some(target), _) => named::slot(here, target, Some(session)).ok_or(Refusal::WorkerUnavailable)?,
        (None, Some((home, _))) => home,
        (None, None) if here.pool.rules.policy == Policy::Direct => return Err(Refusal::WorkerRequired),
        (None, None) => match choose::alone(here, session) {
            Ok(slot) => slot,
            Err(_) => return Ok(None),
        },
    };
    let version = env.vm.version_after(seen.max(cached.map(|record| record.version)));
    let pool = here.pool.name.clone();
    let pending = Pending { session, pool, request, hold: None, version, cached: false };
    Ok(Some(Half { slot, pending: Some(pending), ends: None }))
}
