//! Slots handed from one replica to another: the same scores, older batches change nothing, newer ones are applied, and what is of
//! another life of its engine is not taken.

use super::world::*;
use crate::config::ServiceConfig;
use crate::state::blocks::{BlockIndex, Held, Overlaps, Piece, Spot};
use crate::state::kv_event::{EngineHash, KvBatch, KvEvent, Tier};
use crate::state::kv_stream::{Attempt, Frame, Input, Link, ReplayFailure, Unfit};
use crate::state::{Command, Effect, Limits, PIECES_AT_ONCE, SlotHead, StateConfig};
use proptest::prelude::*;
use routing::block::{Chain, Namespace};
use routing::contract::*;
use routing::id::*;
use routing::time::Millis;

const BLOCK: u32 = 4;
/// Blocks of a prompt.
const BLOCKS: u32 = 100;

/// One replica.
struct Replica {
    world: World,
    asked: Attempt,
}

impl Replica {
    fn new() -> Self {
        let mut service = ServiceConfig::without_file();
        service.pools[0].policy = Policy::KvAware;
        let mut world = World::with(StateConfig { service, limits: Limits::SERVICE });
        world.state.kv_joining(true);
        world.play("worker w0 ranks=0..2; worker w1 ranks=0..2");
        Self { world, asked: Attempt(0) }
    }

    /// Its rank's socket is connected, and nothing is replayed.
    fn connects(&mut self, rank: u32) {
        self.world.apply(Command::KvLink { worker: worker_id("w0"), rank, link: Link::Up });
        self.take(rank, vec![Input::Connected]);
        self.take(rank, vec![Input::ReplayFailed(self.asked, ReplayFailure::Unavailable)]);
    }

    fn take(&mut self, rank: u32, inputs: Vec<Input>) {
        for effect in self.world.effects(Command::Kv { worker: worker_id("w0"), rank, inputs }) {
            if let Effect::Replay { attempt, .. } = effect {
                self.asked = attempt;
            }
        }
    }

    fn hears(&mut self, rank: u32, frames: &[Frame]) {
        self.take(rank, frames.iter().cloned().map(Input::Live).collect());
    }

    /// As the shell reads a slot.
    fn reads(&mut self, rank: u32) -> Result<(SlotHead, Vec<Piece>), Unfit> {
        let state = &mut self.world.state;
        let (hand, head) = state.kv_read(&worker_id("w0"), rank)?;
        let mut blocks: Vec<(Spot, Held)> = Vec::new();
        for tier in [Tier::Gpu, Tier::Host, Tier::Disk] {
            let mut from = Some(0);
            while let Some(at) = from {
                let (found, next) = state.kv_handles(hand, tier, at)?;
                blocks.extend(found);
                from = next;
            }
        }
        blocks.sort_unstable();
        let mut pieces = Vec::new();
        for held in blocks.chunk_by(|one, other| one.0.segment() == other.0.segment()) {
            let (seed, hashes) = state.kv_hashes(hand, &[held.last().unwrap().0])?.remove(0);
            pieces.push(Piece { seed, hashes, held: held.iter().map(|(_, held)| *held).collect() });
        }
        state.kv_let_go(self.world.now, hand, &mut Vec::new());
        Ok((head, pieces))
    }

    /// As the shell takes one over; `meanwhile` is heard when half of it is in.
    fn takes_over(
        &mut self,
        (head, pieces): &(SlotHead, Vec<Piece>),
        meanwhile: &[Frame],
    ) -> Result<(), Unfit> {
        let blocks = pieces.iter().map(|piece| piece.held.len()).sum();
        let hand = self.world.state.kv_take_over(self.world.now, head, blocks, &mut Vec::new())?;
        let half = pieces.len() / 2;
        for part in pieces[..half].chunks(PIECES_AT_ONCE) {
            self.world.state.kv_put(hand, part)?;
        }
        self.hears(head.rank, meanwhile);
        let rest = self.world.state.kv_put(hand, &pieces[half..]);
        let done = rest.and_then(|()| self.world.state.kv_filled(hand));
        self.world.state.kv_let_go(self.world.now, hand, &mut Vec::new());
        done
    }

    /// How much of each prompt each rank of w0 is known to hold, in every tier.
    fn scores(&self) -> Vec<[[u32; 3]; 2]> {
        (0..PROMPTS).map(|name| [0, 1].map(|rank| self.score(name, rank))).collect()
    }

    fn score(&self, name: u32, rank: u32) -> [u32; 3] {
        let target = Target { worker: worker_id("w0"), rank: Some(Rank(rank)) };
        let index: Option<&BlockIndex> = self.world.state.kv_index(&pool());
        let found = self.world.state.kv_slot(&target).zip(index).map(|(slot, index)| {
            let mut overlaps = Overlaps::default();
            let chain = Chain::of(Namespace::default(), BLOCK, &tokens(name));
            index.find(&chain.hashes, &mut overlaps);
            let of = overlaps.of(slot);
            [of.gpu, of.host, of.disk]
        });
        found.unwrap_or_default()
    }

    fn is_cold(&self, rank: u32) -> bool {
        let target = Target { worker: worker_id("w0"), rank: Some(Rank(rank)) };
        self.world.state.kv_view(self.world.now, &target).unwrap().cold
    }
}

const PROMPTS: u32 = 4;

/// Prompts that share their beginning, each a little longer than with the one before.
fn tokens(name: u32) -> Vec<u32> {
    let own = |at: u32| if at < (name + 1) * 60 { at } else { (name + 1) * 100_000 + at };
    (0..BLOCKS * BLOCK).map(own).collect()
}

/// An engine's name for a block of a prompt: the same for what prompts share.
fn handle(name: u32, block: u32) -> EngineHash {
    let sharer = (0..name).find(|other| {
        tokens(*other)[..((block + 1) * BLOCK) as usize] == tokens(name)[..((block + 1) * BLOCK) as usize]
    });
    EngineHash(u64::from(sharer.unwrap_or(name)) * 1000 + u64::from(block) + 1)
}

fn stored(name: u32, from: u32, count: u32, tier: Tier) -> KvEvent {
    let until = (from + count).min(BLOCKS);
    KvEvent::Stored {
        hashes: (from..until).map(|block| handle(name, block)).collect(),
        parent: from.checked_sub(1).map(|before| handle(name, before)),
        tokens: tokens(name)[(from * BLOCK) as usize..(until * BLOCK) as usize].to_vec(),
        block_size: BLOCK,
        tier,
        lora: None,
        salt: None,
        extra: 0,
        group: 0,
        kind_ok: true,
    }
}

fn removed(name: u32, from: u32, count: u32, tier: Tier) -> KvEvent {
    let hashes = (from..(from + count).min(BLOCKS)).map(|block| handle(name, block)).collect();
    KvEvent::Removed { hashes, tier, group: 0 }
}

/// Numbered as their publisher does, in one of its lives.
fn frames(life: u64, events: &[KvEvent]) -> Vec<Frame> {
    let frame = |(seq, event): (u64, &KvEvent)| Frame {
        seq,
        stamp: life * 1_000_000 + seq,
        batch: KvBatch { events: vec![event.clone()] },
    };
    (0..).zip(events).map(frame).collect()
}

fn events() -> impl Strategy<Value = Vec<KvEvent>> {
    let tier = prop_oneof![5 => Just(Tier::Gpu), 1 => Just(Tier::Host), 1 => Just(Tier::Disk)];
    let part = (0..PROMPTS, 0..BLOCKS, 1..BLOCKS, tier);
    let event = prop_oneof![
        4 => part.clone().prop_map(|(name, _, count, tier)| stored(name, 0, count, tier)),
        4 => part.clone().prop_map(|(name, from, count, tier)| stored(name, from, count, tier)),
        3 => part.prop_map(|(name, from, count, tier)| removed(name, from, count, tier)),
        1 => Just(KvEvent::Cleared),
    ];
    // A slot begins with its first block.
    let all = prop::collection::vec(event, 1..30);
    all.prop_map(|events| [vec![stored(0, 0, 1, Tier::Gpu)], events].concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// One replica hears everything of rank 0 from the first batch on. Another one connects after `late`, reads the slot at `at`, hears
    /// on while it fills it, and hears the rest: it knows what the first one knows.
    #[test]
    fn who_joins_late_knows_what_who_was_there_knows(
        events in events(),
        others in events(),
        cuts in prop::collection::vec(0..30usize, 3),
    ) {
        let published = frames(1, &events);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(published.len())).collect();
        cuts.sort_unstable();
        let [late, read, filled] = cuts[..] else { panic!() };
        let (mut one, mut other) = (Replica::new(), Replica::new());
        one.connects(0);
        // The other rank's blocks lie in the same chains, in another order.
        other.connects(1);
        other.hears(1, &frames(2, &others));
        other.connects(0);
        one.hears(0, &published[..read]);
        other.hears(0, &published[late..read]);
        if read > 0 {
            let slot = one.reads(0).unwrap();
            match other.takes_over(&slot, &published[read..filled]) {
                Ok(()) => {}
                // From its first batch on, or after its cache was emptied: nothing is missing here.
                Err(Unfit::Known) => other.hears(0, &published[read..filled]),
                Err(unfit) => prop_assert!(false, "{unfit:?}"),
            }
        }
        one.hears(0, &published[read..]);
        other.hears(0, &published[filled..]);
        if read > 0 {
            prop_assert_eq!(one.is_cold(0), other.is_cold(0));
            // A block that lies in another segment here may be missed; one that is not there is never found.
            for (name, (one, other)) in (0..).zip(one.scores().into_iter().zip(other.scores())) {
                prop_assert!(other[0].iter().sum::<u32>() <= one[0].iter().sum::<u32>(), "prompt {name}");
            }
        }
    }

    /// Read and put into an empty index, it is the same: also what it is when it is read again.
    #[test]
    fn read_and_put_in_is_the_same(events in events(), others in events()) {
        let (mut one, mut other) = (Replica::new(), Replica::new());
        for (rank, events) in [(0, &events), (1, &others)] {
            one.connects(rank);
            other.connects(rank);
            one.hears(rank, &frames(1, events));
        }
        for rank in [0, 1] {
            let slot = one.reads(rank).unwrap();
            prop_assert_eq!(other.takes_over(&slot, &[]), Ok(()));
        }
        prop_assert_eq!(one.scores(), other.scores());
        for rank in [0, 1] {
            let [mut one, mut other] = [one.reads(rank).unwrap(), other.reads(rank).unwrap()];
            for slot in [&mut one, &mut other] {
                slot.1.iter_mut().for_each(|piece| piece.hashes.truncate(1));
                slot.1.sort_unstable_by_key(|piece| piece.hashes.clone());
            }
            prop_assert_eq!(one.0, other.0);
            let held = |pieces: &[Piece]| -> usize { pieces.iter().map(|piece| piece.held.len()).sum() };
            prop_assert_eq!(held(&one.1), held(&other.1));
        }
        // Nothing is left behind when all goes.
        for (rank, events) in [(0, &events), (1, &others)] {
            let seq = events.len() as u64;
            let gone = Frame { seq, stamp: 1, batch: KvBatch { events: vec![KvEvent::Cleared] } };
            other.hears(rank, &[gone]);
        }
        prop_assert_eq!(other.world.state.kv_index(&pool()).map_or(0, BlockIndex::resident), 0);
    }
}

fn two(events: &[KvEvent]) -> (Replica, Replica, Vec<Frame>) {
    let (mut one, mut other) = (Replica::new(), Replica::new());
    one.connects(0);
    other.connects(0);
    let published = frames(1, events);
    one.hears(0, &published);
    (one, other, published)
}

#[test]
fn what_is_in_it_changes_nothing_and_what_is_newer_is_applied() {
    let events = [stored(0, 0, 40, Tier::Gpu), removed(0, 30, 10, Tier::Gpu), stored(0, 30, 5, Tier::Gpu)];
    let (mut one, mut other, published) = two(&events[..2]);
    let slot = one.reads(0).unwrap();
    assert_eq!(other.takes_over(&slot, &[]), Ok(()));
    assert_eq!(other.score(0, 0), [30, 0, 0]);
    // The store of what was removed since comes late.
    other.hears(0, &published);
    assert_eq!(other.score(0, 0), [30, 0, 0], "a batch that is in it was applied again");
    other.hears(0, &frames(1, &events)[2..]);
    assert_eq!(other.score(0, 0), [35, 0, 0]);
    assert!(!other.is_cold(0));
}

#[test]
fn a_slot_of_another_life_is_not_taken_and_one_whose_publisher_began_anew_goes() {
    let events: Vec<KvEvent> = (0..40).map(|at| stored(0, at, 1, Tier::Gpu)).collect();
    let (mut one, mut other, _) = two(&events);
    let slot = one.reads(0).unwrap();
    // The engine began anew, and only the second replica has noticed: the same number is another batch.
    other.hears(0, &frames(2, &events)[30..]);
    assert_eq!(other.takes_over(&slot, &[]), Err(Unfit::OtherLife));
    assert_eq!(other.score(0, 0), [0, 0, 0]);
    // Numbers too low to be compared prove nothing either.
    let mut other = Replica::new();
    other.connects(0);
    other.hears(0, &frames(2, &events)[1..2]);
    assert_eq!(other.takes_over(&slot, &[]), Err(Unfit::OtherLife));
    // Nothing was heard: taken; the first batch of another life empties it.
    let mut other = Replica::new();
    other.connects(0);
    assert_eq!(other.takes_over(&slot, &[]), Ok(()));
    assert_eq!(other.score(0, 0), [40, 0, 0]);
    other.hears(0, &frames(2, &events)[3..4]);
    other.take(0, vec![Input::ReplayFailed(other.asked, ReplayFailure::Unavailable)]);
    assert_eq!(other.score(0, 0), [0, 0, 0]);
}

#[test]
fn what_does_not_fit_is_not_taken_and_changes_nothing() {
    let events: Vec<KvEvent> = (0..9).map(|at| stored(0, at, 1, Tier::Gpu)).collect();
    let (mut one, mut other, published) = two(&events[..5]);
    let slot = one.reads(0).unwrap();
    other.hears(0, &frames(1, &events)[7..]);
    assert_eq!(other.takes_over(&slot, &[]), Err(Unfit::Behind), "batches 5 and 6 are in neither");
    let mut whole = Replica::new();
    whole.world.apply(Command::KvLink { worker: worker_id("w0"), rank: 0, link: Link::Up });
    whole.hears(0, &published);
    assert_eq!(whole.takes_over(&slot, &[]), Err(Unfit::Known));
    let mut deaf = Replica::new();
    assert_eq!(deaf.takes_over(&slot, &[]), Err(Unfit::NotConnected));
    deaf.connects(0);
    let elsewhere = SlotHead { address: "10.9.9.9:1".to_owned(), ..slot.0.clone() };
    assert_eq!(deaf.takes_over(&(elsewhere, slot.1.clone()), &[]), Err(Unfit::Unknown));
    let nobody = SlotHead { worker: worker_id("nobody"), ..slot.0.clone() };
    assert_eq!(deaf.takes_over(&(nobody, slot.1.clone()), &[]), Err(Unfit::Unknown));
    assert_eq!(deaf.takes_over(&slot, &[]), Ok(()));
}

#[test]
fn who_empties_a_slot_while_it_is_handed_over_ends_that() {
    let (mut one, mut other, _) = two(&[stored(0, 0, 80, Tier::Gpu)]);
    let (hand, _) = one.world.state.kv_read(&worker_id("w0"), 0).unwrap();
    one.hears(
        0,
        &[Frame { seq: 1, stamp: 1, batch: KvBatch { events: vec![removed(0, 70, 10, Tier::Gpu)] } }],
    );
    assert_eq!(one.score(0, 0), [80, 0, 0], "what is published waits while it is read");
    one.world.state.kv_let_go(one.world.now, hand, &mut Vec::new());
    assert_eq!(one.score(0, 0), [70, 0, 0]);

    let slot = one.reads(0).unwrap();
    let hand = other.world.state.kv_take_over(other.world.now, &slot.0, 70, &mut Vec::new()).unwrap();
    other.world.state.kv_put(hand, &slot.1[..1]).unwrap();
    // The connection is made anew, and nothing is replayed.
    other.connects(0);
    assert_eq!(other.world.state.kv_put(hand, &slot.1[1..]), Err(Unfit::Busy));
    assert_eq!(other.world.state.kv_filled(hand), Err(Unfit::Busy));
    assert_eq!(other.score(0, 0), [0, 0, 0]);
}

#[test]
fn a_slot_that_is_not_filled_up_is_cold() {
    let (mut one, mut other, _) = two(&[stored(0, 0, 100, Tier::Gpu)]);
    one.take(0, vec![Input::Tick]);
    let slot = one.reads(0).unwrap();
    assert!(!slot.0.reach.cold, "it was heard from its first batch on");
    let hand = other.world.state.kv_take_over(other.world.now, &slot.0, 100, &mut Vec::new()).unwrap();
    other.world.state.kv_put(hand, &slot.1[..1]).unwrap();
    other.world.state.kv_let_go(other.world.now, hand, &mut Vec::new());
    assert!(other.is_cold(0));
    assert_eq!(other.score(0, 0), [64, 0, 0]);
    other.world.now += Millis(1);
}
