//! Slots of the index of caches as other replicas read them, and as they are taken over: the state is locked for a part at a time.

use super::Service;
use crate::state::blocks::{Held, Piece, Spot};
use crate::state::kv_event::Tier;
use crate::state::kv_stream::Unfit;
use crate::state::{Effect, Hand, PIECES_AT_ONCE, SlotHead, State};
use routing::id::WorkerId;
use routing::time::Timestamp;

/// A slot that is being handed over; what waits for it waits no longer once this is dropped.
struct Handing<'a> {
    service: &'a Service,
    hand: Hand,
}

impl Drop for Handing<'_> {
    fn drop(&mut self) {
        self.service.on_state(|state, now, out| state.kv_let_go(now, self.hand, out));
    }
}

impl Service {
    fn on_state<R>(&self, what: impl FnOnce(&mut State, Timestamp, &mut Vec<Effect>) -> R) -> R {
        let mut effects = Vec::new();
        let done = {
            let mut state = self.lock();
            what(&mut state, self.clock.now(), &mut effects)
        };
        effects.into_iter().for_each(|effect| self.carry_out(effect));
        done
    }

    /// Whether it joins other replicas, and may take over what these hold.
    pub fn join_index(&self, joining: bool) {
        self.lock().kv_joining(joining);
    }

    /// Slots that may be read.
    pub(crate) fn index_slots(&self) -> Vec<(WorkerId, u32)> {
        self.lock().kv_handable()
    }

    /// Ranks whose events are wanted, and how many of all are connected.
    pub(crate) fn index_links(&self) -> (u64, u64) {
        let wanted = self.kv_wanted().iter().map(|wanted| u64::from(wanted.count)).sum();
        (wanted, self.kv_hub.connected.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// One slot as it is at one moment.
    pub(crate) fn read_slot(&self, worker: &WorkerId, rank: u32) -> Result<(SlotHead, Vec<Piece>), Unfit> {
        let (hand, head) = {
            let _between_batches = self.kv_hub.between_batches();
            self.lock().kv_read(worker, rank)?
        };
        let handing = Handing { service: self, hand };
        let mut blocks: Vec<(Spot, Held)> = Vec::new();
        for tier in [Tier::Gpu, Tier::Host, Tier::Disk] {
            let mut from = Some(0);
            while let Some(place) = from {
                let (found, next) = self.lock().kv_handles(hand, tier, place)?;
                blocks.extend(found);
                from = next;
            }
        }
        blocks.sort_unstable();
        let pieces = self.read_pieces(hand, &blocks)?;
        drop(handing);
        Ok((head, pieces))
    }

    fn read_pieces(&self, hand: Hand, blocks: &[(Spot, Held)]) -> Result<Vec<Piece>, Unfit> {
        let segments: Vec<&[(Spot, Held)]> =
            blocks.chunk_by(|one, other| one.0.segment() == other.0.segment()).collect();
        let mut pieces = Vec::with_capacity(segments.len());
        for some in segments.chunks(PIECES_AT_ONCE) {
            let last: Vec<Spot> = some.iter().filter_map(|held| held.last()).map(|(spot, _)| *spot).collect();
            let hashes = self.lock().kv_hashes(hand, &last)?;
            for (held, (seed, hashes)) in some.iter().zip(hashes) {
                pieces.push(Piece { seed, hashes, held: held.iter().map(|(_, held)| *held).collect() });
            }
        }
        Ok(pieces)
    }

    /// Takes over a slot of another replica.
    pub(crate) fn take_slot(&self, head: &SlotHead, pieces: &[Piece]) -> Result<(), Unfit> {
        let blocks = pieces.iter().map(|piece| piece.held.len()).sum();
        let hand = {
            let _between_batches = self.kv_hub.between_batches();
            self.on_state(|state, now, out| state.kv_take_over(now, head, blocks, out))?
        };
        let handing = Handing { service: self, hand };
        for some in pieces.chunks(PIECES_AT_ONCE) {
            self.lock().kv_put(hand, some)?;
        }
        self.lock().kv_filled(hand)?;
        drop(handing);
        Ok(())
    }
}
