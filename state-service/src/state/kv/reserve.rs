//! Reservations of hosts that dispatch requests themselves: chosen and booked like an Envoy's, but under an id of their own.
//!
//! Owns what of a route they have: no session, no hold, no report; their time ends them if nobody else does.

use super::super::State;
use super::super::binding::Slot;
use super::super::command::{ReservationId, Reserve, Reserved};
use super::super::error::StateError;
use super::super::judge::{Asked, Seat};
use super::super::verdict::Act;
use super::bookings::Owner;
use super::look::Looked;
use routing::contract::Target;
use routing::demand::Demands;
use routing::hash::Phase;
use routing::id::RequestId;
use routing::time::{Millis, Timestamp};

impl State {
    /// Chooses a slot, or takes the named one, and books the prompt there. Asked again under the same id it stays where it is.
    pub(in crate::state) fn reserve_for_host(
        &mut self,
        now: Timestamp,
        ask: Reserve,
    ) -> Result<Reserved, StateError> {
        let declared = || self.pools.keys().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
        let unknown = || StateError::UnknownPool { pool: ask.pool.clone(), declared: declared() };
        let pool = self.pools.get(&ask.pool).cloned().ok_or_else(unknown)?;
        let found = std::mem::take(&mut self.kv.found);
        let looked = self.look(now, &pool, Some(*ask.prompt), found);
        let Some(looked) = looked else { return Err(StateError::NotByPrompt { pool: pool.name }) };
        let owner = Owner::Host(ask.id.0);
        let asked = Asked {
            now,
            seat: Seat::New,
            request: RequestId(0),
            pool,
            phase: Phase::Aggregated,
            session: None,
            cached: None,
            named: ask.named.or_else(|| self.reserved_before(owner)),
            demands: Demands::default(),
            looked: Some(&looked),
            draw: ask.draw,
        };
        let reserved = self.reserve_looked(&asked, &looked, (owner, ask.within));
        self.kv.found = looked.into_found();
        reserved
    }

    fn reserve_looked(
        &mut self,
        asked: &Asked,
        looked: &Looked,
        (owner, within): (Owner, Millis),
    ) -> Result<Reserved, StateError> {
        let verdict = self.judge(asked);
        let reply = self.answer_alone(asked, verdict);
        let place = verdict.act.slot().zip(reply.target);
        let Some((slot, target)) = place else { return Err(no_place(verdict.act)) };
        let worker = self.workers.by_hash(slot.worker).ok_or_else(|| no_place(Act::NoWorker))?;
        let place = (worker, worker.slot_of(slot.rank()));
        let booked = self.kv.book(asked.now, (owner, within), (&asked.pool, asked.phase, looked), place);
        Ok(Reserved { target, overlap: reply.overlap, reason: reply.reason, booked })
    }

    fn reserved_before(&self, owner: Owner) -> Option<Target> {
        let slot: Slot = self.kv.bookings.slot_of(owner)?;
        let worker = self.workers.by_hash(slot.worker).filter(|worker| worker.state().is_open())?;
        Some(worker.target(slot))
    }

    pub(in crate::state) fn reservation_prefilled(&mut self, id: ReservationId) -> Result<(), StateError> {
        let owner = Owner::Host(id.0);
        if !self.kv.bookings.has(owner) {
            return Err(StateError::UnknownReservation);
        }
        self.kv.bookings.prefilled(owner);
        Ok(())
    }

    /// Also of one that is not there, or not yet: then it never will be.
    pub(in crate::state) fn release_reservation(&mut self, now: Timestamp, id: ReservationId) {
        self.end_booking(now, Owner::Host(id.0));
    }
}

fn no_place(act: Act) -> StateError {
    StateError::NoPlace { reason: act.reason() }
}
