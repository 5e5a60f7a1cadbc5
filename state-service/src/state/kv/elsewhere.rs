//! What other replicas have booked on slots, and what of our own they were told.
//!
//! Each replica tells its own sums, absolute and by slot, when they change and again after a while. A share that is not told again is
//! over: its replica is gone, and its requests are somebody else's.

use super::super::State;
use super::super::binding::Slot;
use super::super::shared::Note;
use super::Kv;
use super::seats::Sums;
use super::spread::Spread;
use routing::contract::Target;
use routing::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Sums that did not change are told again after so long.
const TOLD_AGAIN: Millis = Millis::from_secs(5);
/// What another replica did not tell again for so long is over.
const LEASE: Millis = Millis::from_secs(15);
/// Most slots told in one note, which is limited in bytes.
const SLOTS_MAX: usize = 10;
/// Most shares of others. Past it a further one does not count.
const SHARES_MAX: usize = 65_536;
/// No slot carries more than that: whatever another one says, sums stay sums.
const SUM_MAX: u64 = 1 << 40;

/// What one replica's requests load one slot with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// The slot.
    pub target: Target,
    /// Tokens that wait for prefill, or are prefilled now.
    pub prefill: u64,
    /// Blocks that active requests hold.
    pub decode: u64,
    /// Requests.
    pub requests: u64,
    /// Of these, reservations of hosts.
    pub hosts: u64,
    /// Blocks of their prompts.
    pub blocks: u64,
}

#[derive(Debug)]
struct Share {
    sums: Sums,
    seq: u64,
    until: Timestamp,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// By slot and replica.
    shares: BTreeMap<(Slot, u64), Share>,
    /// Of all shares of a slot. Asked for each slot at each choice; never walked.
    sums: HashMap<Slot, Sums, Spread>,
    /// What others know of our own, none of slots without any.
    told: BTreeMap<Slot, (Sums, Timestamp)>,
    /// Of the last note.
    seq: u64,
}

impl Elsewhere {
    /// What all other replicas have booked there.
    pub(super) fn on(&self, slot: Slot) -> Sums {
        self.sums.get(&slot).copied().unwrap_or_default()
    }

    fn take(&mut self, now: Timestamp, (slot, replica): (Slot, u64), seq: u64, sums: Sums) {
        let key = (slot, replica);
        let known = self.shares.get(&key);
        if known.is_some_and(|known| known.seq >= seq) || (known.is_none() && self.shares.len() >= SHARES_MAX)
        {
            return;
        }
        // Nothing is kept, too: an older share that comes late must not take its place.
        self.shares.insert(key, Share { sums, seq, until: now + LEASE });
        self.add_up(slot);
    }

    fn add_up(&mut self, slot: Slot) {
        let shares = self.shares.range((slot, 0)..=(slot, u64::MAX));
        let sums = shares.fold(Sums::default(), |sums, (_, share)| sums.plus(share.sums));
        match sums == Sums::default() {
            true => self.sums.remove(&slot),
            false => self.sums.insert(slot, sums),
        };
    }

    pub(super) fn expire(&mut self, now: Timestamp) {
        let over = self.shares.extract_if(.., |_, share| share.until <= now);
        let slots: Vec<Slot> = over.map(|((slot, _), _)| slot).collect();
        slots.into_iter().for_each(|slot| self.add_up(slot));
    }
}

impl Kv {
    /// Slots whose own sums others should hear.
    fn untold(&self, now: Timestamp) -> Vec<(Slot, Sums)> {
        let told = &self.elsewhere.told;
        let news = |(slot, sums): &(Slot, Sums)| match told.get(slot) {
            None => *sums != Sums::default(),
            Some((known, at)) => known != sums || now.since(*at) >= TOLD_AGAIN,
        };
        let own = self.bookings.slots().filter(news);
        let gone = told.keys().filter(|slot| self.bookings.seat_of(**slot).is_none());
        own.chain(gone.map(|slot| (*slot, Sums::default()))).collect()
    }
}

impl State {
    /// What this replica's requests load slots with, where that changed or was not told for a while; at most so many notes.
    pub(in crate::state) fn carried_untold(&mut self, now: Timestamp, max: usize) -> Vec<Note> {
        let mut untold = self.kv.untold(now);
        untold.truncate(max.saturating_mul(SLOTS_MAX));
        let mut notes = Vec::new();
        for some in untold.chunks(SLOTS_MAX) {
            self.kv.elsewhere.seq += 1;
            for (slot, sums) in some {
                match *sums == Sums::default() {
                    true => self.kv.elsewhere.told.remove(slot),
                    false => self.kv.elsewhere.told.insert(*slot, (*sums, now)),
                };
            }
            let slots = some.iter().filter_map(|(slot, sums)| self.carried(*slot, *sums)).collect();
            notes.push(Note::Carried { replica: self.epoch.0, seq: self.kv.elsewhere.seq, slots });
        }
        notes
    }

    fn carried(&self, slot: Slot, sums: Sums) -> Option<Carried> {
        let target = self.workers.by_hash(slot.worker)?.target(slot);
        let Sums { prefill_tokens, decode_blocks, booked, by_hosts, prompt_blocks } = sums;
        Some(Carried {
            target,
            prefill: prefill_tokens,
            decode: decode_blocks,
            requests: booked,
            hosts: by_hosts,
            blocks: prompt_blocks,
        })
    }

    /// What another replica's requests load slots with. Of workers that are not declared here nobody chooses.
    pub(in crate::state) fn take_carried(
        &mut self,
        now: Timestamp,
        (replica, seq): (u64, u64),
        slots: &[Carried],
    ) {
        for Carried { target, prefill, decode, requests, hosts, blocks } in slots {
            let worker = self.workers.by_id(&target.worker).filter(|worker| worker.has_rank(target.rank));
            let Some(slot) = worker.map(|worker| worker.slot_of(target.rank)) else { continue };
            let [prefill_tokens, decode_blocks, booked, by_hosts, prompt_blocks] =
                [prefill, decode, requests, hosts, blocks].map(|sum| (*sum).min(SUM_MAX));
            let sums = Sums { prefill_tokens, decode_blocks, booked, by_hosts, prompt_blocks };
            self.kv.elsewhere.take(now, (slot, replica), seq, sums);
        }
    }
}
