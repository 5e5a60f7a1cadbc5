//! Bound turns that wait for their overloaded slot: in the order they came, each slot on its own.
//!
//! Owns who waits, for how long, and how many may. A waiter is a question not answered yet, nothing else: when its slot
//! clears, its time is up or its slot is gone, it is asked again and does not wait a second time. Whoever asked and has gone
//! is taken out; what was never answered leaves nothing.

use super::State;
use super::binding::Slot;
use super::command::{Effect, Later, Ticket};
use super::judge::{Asked, Seat};
use super::limits::WAITERS_MAX;
use super::route::refresh;
use routing::block::Chain;
use routing::contract::{Affinity, OnOverload, PoolInfo, RouteRequest, WAIT_MAX};
use routing::time::{Millis, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks kept of the prompt of one that waits; what comes after them is not looked for.
const WAITER_BLOCKS_MAX: usize = 8192;

/// One question that waits.
#[derive(Debug)]
struct Waiter {
    slot: Slot,
    until: Timestamp,
    request: RouteRequest,
    prompt: Option<Chain>,
    draw: u64,
}

/// All who wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    waiters: BTreeMap<Ticket, Waiter>,
    /// Tickets grow, so those of one slot are in the order they came.
    order: BTreeSet<(Slot, Ticket)>,
    due: BTreeSet<(Timestamp, Ticket)>,
    next: u64,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    fn is_due(&self, now: Timestamp) -> bool {
        self.due.first().is_some_and(|(until, _)| *until <= now)
    }

    fn add(&mut self, waiter: Waiter) -> Ticket {
        self.next += 1;
        let ticket = Ticket(self.next);
        self.order.insert((waiter.slot, ticket));
        self.due.insert((waiter.until, ticket));
        self.waiters.insert(ticket, waiter);
        ticket
    }

    fn take(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        self.order.remove(&(waiter.slot, ticket));
        self.due.remove(&(waiter.until, ticket));
        Some(waiter)
    }

    /// One whose time is up.
    fn take_due(&mut self, now: Timestamp) -> Option<(Ticket, Waiter)> {
        let (_, ticket) = self.due.first().copied().filter(|(until, _)| *until <= now)?;
        Some((ticket, self.take(ticket)?))
    }

    /// The one that has waited longest for a slot.
    fn take_first(&mut self, slot: Slot) -> Option<(Ticket, Waiter)> {
        let (of, ticket) = self.order.range((slot, Ticket(0))..).next().copied()?;
        if of == slot { Some((ticket, self.take(ticket)?)) } else { None }
    }

    /// The next slot that is waited for.
    fn slot_after(&self, slot: Option<Slot>) -> Option<Slot> {
        let mut order = match slot {
            Some(slot) => self.order.range((slot, Ticket(u64::MAX))..),
            None => self.order.range(..),
        };
        order.next().map(|(slot, _)| *slot)
    }

    /// Whether the three views tell of the same waiters.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let slots: BTreeSet<(Slot, Ticket)> = self.waiters.iter().map(|(t, w)| (w.slot, *t)).collect();
        let due: BTreeSet<(Timestamp, Ticket)> = self.waiters.iter().map(|(t, w)| (w.until, *t)).collect();
        assert_eq!((&slots, &due), (&self.order, &self.due));
        assert!(self.len() <= WAITERS_MAX);
    }
}

impl State {
    /// Lets a question wait, if it may and its session is bound to a slot that is overloaded. Nobody waits where the queue is
    /// full: such a turn is spilled at once.
    pub(super) fn wait_for_slot(
        &mut self,
        now: Timestamp,
        request: &RouteRequest,
        prompt: Option<&Chain>,
        draw: u64,
    ) -> Option<Later> {
        if request.wait_ms.0 == 0 || request.dry_run {
            return None;
        }
        let slot = self.awaited_slot(now, request).filter(|slot| self.is_busy(*slot))?;
        if self.waiting.len() >= WAITERS_MAX {
            self.counters.wait_queue_full += 1;
            return None;
        }
        let longest = self.pools.get(&request.pool).map_or(WAIT_MAX, |pool| pool.wait_ms);
        let within = request.wait_ms.min(longest).min(WAIT_MAX);
        self.keep_while_waiting(now, request);
        self.counters.wait_begun += 1;
        let request = RouteRequest { wait_ms: Millis(0), prompt: None, ..request.clone() };
        let prompt = prompt.map(head);
        let ticket = self.waiting.add(Waiter { slot, until: now + within, request, prompt, draw });
        Some(Later { ticket, within })
    }

    /// Where the session is bound, if turns of this pool wait for such a slot; nothing is changed or learned.
    fn awaited_slot(&self, now: Timestamp, request: &RouteRequest) -> Option<Slot> {
        let waits =
            |pool: &&PoolInfo| pool.affinity == Affinity::Hard && pool.on_overload == OnOverload::Wait;
        let pool = self.pools.get(&request.pool).filter(waits)?.clone();
        let session = request.session.or_else(|| self.behind(now, request));
        if self.leaves_to_filter(now, &pool, session, request.cached) {
            return None;
        }
        let asked = Asked::serving((now, Seat::New, 0), pool, request, (session, None));
        let slot = self.binding(&asked, asked.pinned()?)?.slot;
        let worker = self.workers.by_hash(slot.worker)?;
        let agrees = asked.named.as_ref().is_none_or(|named| named.worker == worker.spec.id);
        (agrees && self.keeps(&asked, slot)).then_some(slot)
    }

    /// A turn that waits is under way: its binding does not expire meanwhile.
    fn keep_while_waiting(&mut self, now: Timestamp, request: &RouteRequest) {
        let ttl = self.pools.get(&request.pool).map(|pool| pool.ttl_ms);
        let session = request.session.or_else(|| self.behind(now, request));
        if let (Some(session), Some(ttl)) = (session, ttl)
            && self.sessions.by_id(session.id).is_some()
        {
            self.sessions.edit(session.id, session.rank_hash, |s| refresh(s, now + ttl));
        }
    }

    /// Whether a slot can be waited for: it is there, and overloaded.
    fn is_busy(&self, slot: Slot) -> bool {
        let worker = self.workers.by_hash(slot.worker);
        worker.is_some_and(|w| w.is_usable() && w.has_rank(slot.rank()) && w.is_overloaded(slot))
    }

    /// Who waited and has gone needs no answer.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        let left = self.waiting.take(ticket).is_some();
        self.counters.wait_left += u64::from(left);
    }

    /// After every command: answers those whose time is up, then those whose slot has room, first come, first served.
    pub(super) fn settle_waiting(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        self.judge_touched();
        // Without news of a worker or a slot nobody's slot has cleared.
        if self.waiting.len() == 0 || !self.fleet_stale && !self.waiting.is_due(now) {
            return;
        }
        while let Some((ticket, waiter)) = self.waiting.take_due(now) {
            self.counters.wait_over += 1;
            self.answer_waiter(now, ticket, waiter, out);
        }
        let mut next = self.waiting.slot_after(None);
        while let Some(slot) = next {
            self.serve_slot(now, slot, out);
            next = self.waiting.slot_after(Some(slot));
        }
    }

    /// Each one served counts on its slot at once, so the slot may be overloaded again before all are.
    fn serve_slot(&mut self, now: Timestamp, slot: Slot, out: &mut Vec<Effect>) {
        while !self.is_busy(slot) {
            let Some((ticket, waiter)) = self.waiting.take_first(slot) else { return };
            self.counters.wait_cleared += 1;
            self.answer_waiter(now, ticket, waiter, out);
        }
    }

    /// Where it goes counts before the next one is looked at.
    fn answer_waiter(&mut self, now: Timestamp, ticket: Ticket, waiter: Waiter, out: &mut Vec<Effect>) {
        let reply = Box::new(self.route(now, waiter.request, waiter.prompt, waiter.draw));
        out.push(Effect::Answer { ticket, reply });
        self.judge_touched();
    }
}

fn head(prompt: &Chain) -> Chain {
    let hashes = prompt.hashes.iter().take(WAITER_BLOCKS_MAX).copied().collect();
    Chain { hashes, block_size: prompt.block_size, tokens: prompt.tokens }
}
