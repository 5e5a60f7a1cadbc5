//! A prefill half that is chosen: how the engine that decodes is told of it, what it counts as, what becomes of its binding.
//!
//! Owns its load, from the headers that tell of it to the head of the answer. Who prefills is `prefill`'s to choose.

use super::place::{self, Slot};
use super::{Binding, Effect, Env, Here, Pending, RequestFlow, finish};
use crate::contract::Target;
use crate::hash::Phase;
use crate::vm::Vm;

/// A prefill slot, chosen.
#[derive(Debug)]
pub(super) struct Half {
    pub(super) slot: Slot,
    pub(super) pending: Option<Pending>,
    /// The binding that ends with the turn.
    pub(super) ends: Option<Binding>,
}

/// A binding that ends with the turn, and where it is.
pub(super) type Ends = (Binding, Slot);

impl RequestFlow {
    /// Tells the decode engine who prefills, and counts it there.
    pub(super) fn tell_prefill(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        out: &mut Vec<Effect>,
    ) -> Option<Half> {
        let names = &env.config.prefill_headers;
        let mut half = self.prefill.take();
        let told = half.as_ref().and_then(|half| wire(env.vm, here, half));
        let Some((address, rank)) = told else {
            // A host name that did not resolve yet: what was held for it is nobody's.
            if let Some(half) = half.take() {
                half.ended_unplaced(env.vm, out);
            }
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

/// Address of the prefill endpoint, and the rank there as it counts.
fn wire(vm: &mut Vm, here: Here<'_>, half: &Half) -> Option<(String, Option<u32>)> {
    // By its name: it may have been chosen before the service was asked, and the directory is another one since.
    let (_, worker) = here.directory.worker_by_hash(half.slot.hash)?;
    let prefills = worker.phase == Phase::Prefill && place::is_of_pool(here, worker);
    let worker = Some(worker).filter(|_| prefills)?;
    let session = here.turn.prefill.map(|session| session.rank_hash.0);
    let draw = session.unwrap_or_else(|| vm.draw());
    let endpoint = worker.endpoint(half.slot.rank, draw)?;
    let rank = endpoint.number(worker, half.slot.rank);
    (!endpoint.address.is_empty()).then(|| (endpoint.address.clone(), rank))
}

impl Half {
    /// A half that keeps nothing.
    pub(super) const fn loose(slot: Slot) -> Self {
        Self { slot, pending: None, ends: None }
    }

    /// The answer's head came: the prefill is done. What it held is committed if the answer was accepted, and is nobody's else.
    pub(super) fn answered(self, env: &mut Env<'_>, accepted: bool, out: &mut Vec<Effect>) -> Option<Ends> {
        if !accepted {
            return self.ended(env.vm, out);
        }
        let Self { slot, pending, ends } = self;
        env.vm.loads.remove(slot.hash, slot.rank);
        let Some(pending) = pending else { return ends.map(|binding| (binding, slot)) };
        let binding = Binding::of(&pending);
        let target = Target { worker: slot.worker.clone(), rank: slot.rank };
        finish::commit(env, &slot, pending, target, out);
        Some((binding, slot))
    }

    /// The request ended before it was placed: nothing counts it yet.
    pub(super) fn ended_unplaced(self, vm: &mut Vm, out: &mut Vec<Effect>) {
        if let Some(pending) = self.pending {
            finish::roll_back(vm, pending, out);
        }
    }

    /// The request ended before an accepted answer.
    pub(super) fn ended(self, vm: &mut Vm, out: &mut Vec<Effect>) -> Option<Ends> {
        vm.loads.remove(self.slot.hash, self.slot.rank);
        if let Some(pending) = self.pending {
            finish::roll_back(vm, pending, out);
        }
        self.ends.map(|binding| (binding, self.slot))
    }
}
