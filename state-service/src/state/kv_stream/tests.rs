//! The stream against the cases from the field, and against a publisher's model under loss, repetition and restarts.

mod model;
mod parts;
mod property;
mod sources;

use super::silence::{SILENT_AFTER, SILENT_SERVED};
use super::*;
use crate::state::kv_event::{EngineHash, Tier};
use model::{Slot, cleared, frame, removed, stored};

/// A stream with the slot it feeds.
#[derive(Default)]
struct Rig {
    stream: KvStream,
    slot: Slot,
    now: Timestamp,
    asked: Option<(Attempt, u64)>,
    counts: Vec<Count>,
}

impl Rig {
    fn step(&mut self, input: Input) -> &mut Self {
        let mut out = Vec::new();
        self.stream.step(self.now, input, &mut out);
        for effect in out {
            match effect {
                Effect::Apply(batch) => self.slot.apply(&batch),
                Effect::Clear => self.slot.clear(),
                Effect::AskReplay { attempt, from } => self.asked = Some((attempt, from)),
                Effect::Count(count) => self.counts.push(count),
            }
        }
        self
    }

    fn live(&mut self, life: u64, seq: u64, events: Vec<KvEvent>) -> &mut Self {
        self.step(Input::Live(frame(life, seq, events)))
    }

    /// What was asked for last: its first number.
    fn asked(&mut self) -> (Attempt, u64) {
        self.asked.take().expect("a replay is asked for")
    }

    /// Answers the replay asked for, from that number on.
    fn answer(&mut self, frames: Vec<Frame>) -> &mut Self {
        let (attempt, from) = self.asked();
        for frame in frames.into_iter().filter(|frame| frame.seq >= from) {
            self.step(Input::Replayed(attempt, frame));
        }
        self.step(Input::ReplayEnd(attempt))
    }

    fn fail(&mut self) -> &mut Self {
        let (attempt, _) = self.asked();
        self.step(Input::ReplayFailed(attempt, ReplayFailure::Unavailable))
    }

    fn tick(&mut self, after: Millis) -> &mut Self {
        self.now += after;
        self.step(Input::Tick)
    }

    fn counted(&self, count: Count) -> usize {
        self.counts.iter().filter(|counted| **counted == count).count()
    }
}

/// A connected stream with batches 0 to `next` of life 1, each storing its own number.
fn following(next: u64) -> Rig {
    let mut rig = Rig::default();
    rig.step(Input::Connected).answer(Vec::new());
    for seq in 0..next {
        rig.live(1, seq, vec![stored(seq)]);
    }
    assert_eq!(rig.slot.held(), (0..next).collect::<Vec<_>>());
    assert!(!rig.stream.is_cold() && rig.asked.is_none());
    rig
}

#[test]
fn e2_a_first_frame_numbered_5_and_a_later_gap_are_filled_from_the_ring() {
    let ring = |upto| (0..upto).map(|seq| frame(1, seq, vec![stored(seq)])).collect::<Vec<_>>();
    let mut rig = Rig::default();
    rig.live(1, 5, vec![stored(5)]);
    assert_eq!(rig.asked.map(|(_, from)| from), Some(0), "everything before it is wanted");
    assert_eq!(rig.slot.held(), [0_u64; 0], "it waits: what it follows is not known");
    rig.answer(ring(6));
    assert_eq!(rig.slot.held(), [0, 1, 2, 3, 4, 5]);
    for seq in 6..=9 {
        rig.live(1, seq, vec![stored(seq)]);
    }
    rig.live(1, 12, vec![stored(12)]);
    assert_eq!(rig.asked.map(|(_, from)| from), Some(9), "the last one known comes again, as a proof");
    rig.answer(ring(13));
    assert_eq!(rig.slot.held(), (0..=12).collect::<Vec<_>>());
    assert!(!rig.stream.is_cold());
    assert_eq!((rig.counted(Count::Gap), rig.counted(Count::Cold)), (2, 0));
}

#[test]
fn e2_what_cannot_be_replayed_clears_the_slot() {
    let mut rig = following(10);
    // The ring goes back to 11 only: 10 may have removed anything.
    rig.live(1, 12, vec![stored(12)])
        .answer(vec![frame(1, 11, vec![stored(11)]), frame(1, 12, vec![stored(12)])]);
    assert_eq!(rig.slot.held(), [11, 12]);
    assert!(rig.stream.is_cold());
    assert_eq!((rig.counted(Count::RingShort), rig.counted(Count::Cold)), (1, 1));
}

#[test]
fn a_replay_that_fails_or_is_late_clears_the_slot_and_the_stream_goes_on() {
    let mut failed = following(10);
    failed.live(1, 12, vec![stored(12)]).fail();
    let mut late = following(10);
    late.live(1, 12, vec![stored(12)]).tick(asking::REPLAY_MAX);
    for rig in [&mut failed, &mut late] {
        assert_eq!(rig.slot.held(), [12], "what waited is known");
        assert!(rig.stream.is_cold() && !rig.stream.is_asking());
        rig.live(1, 13, vec![stored(13)]);
        assert_eq!(rig.slot.held(), [12, 13]);
    }
    let (attempt, _) = late.asked();
    late.step(Input::Replayed(attempt, frame(1, 10, vec![stored(10)])));
    assert_eq!(late.slot.held(), [12, 13], "an answer after its time is none");
    assert_eq!(late.counted(Count::ReplayLate), 1);
}

#[test]
fn a_cold_slot_asks_for_everything_again_and_may_become_whole() {
    let mut rig = following(3);
    rig.live(1, 5, vec![stored(5)]).tick(asking::REPLAY_MAX);
    assert!(rig.stream.is_cold());
    rig.asked = None;
    rig.tick(Millis(5000));
    assert_eq!(rig.asked.map(|(_, from)| from), Some(0));
    rig.answer((0..6).map(|seq| frame(1, seq, vec![stored(seq)])).collect());
    assert_eq!(rig.slot.held(), [0, 1, 2, 3, 4, 5]);
    assert!(!rig.stream.is_cold());
}

#[test]
fn e3_numbers_that_go_backwards_are_a_new_life_of_the_publisher() {
    let mut rig = following(900);
    rig.live(2, 0, vec![stored(7)]);
    assert_eq!(rig.slot.held(), [7]);
    assert!(rig.asked.is_none(), "nothing came before number 0");
    rig.live(2, 1, vec![stored(8)]);
    assert_eq!(rig.slot.held(), [7, 8]);
    assert_eq!(rig.counted(Count::Epoch), 1);
}

#[test]
fn e3_a_restart_seen_as_a_new_connection_is_told_by_the_ring() {
    // The new life has published less, as much, or more than the old one: numbers alone would tell only the first.
    for published in [0, 1, 9, 10, 11, 20] {
        let ring = |from: u64| (from..published).map(|seq| frame(2, seq, vec![stored(100 + seq)])).collect();
        let mut rig = following(10);
        rig.step(Input::Connected);
        assert_eq!(rig.asked.map(|(_, from)| from), Some(9));
        rig.answer(ring(9));
        if rig.asked.is_some() {
            rig.answer(ring(0));
        }
        assert_eq!(rig.slot.held(), (100..100 + published).collect::<Vec<_>>(), "{published} published");
        assert_eq!(rig.counted(Count::Epoch), 1, "{published} published");
    }
}

#[test]
fn a_connection_that_broke_and_lost_nothing_costs_nothing() {
    let mut rig = following(10);
    rig.step(Input::Connected).answer(vec![frame(1, 9, vec![stored(9)])]);
    assert_eq!(rig.slot.held(), (0..10).collect::<Vec<_>>());
    rig.step(Input::Connected);
    rig.live(1, 12, vec![stored(12)]);
    rig.answer((9..13).map(|seq| frame(1, seq, vec![stored(seq)])).collect());
    assert_eq!(rig.slot.held(), (0..13).collect::<Vec<_>>());
    assert_eq!((rig.counted(Count::Epoch), rig.counted(Count::Cold)), (0, 0));
}

#[test]
fn a_reconnected_publisher_without_a_replay_socket_is_believed_in_no_more() {
    let mut rig = following(10);
    rig.step(Input::Connected).fail();
    assert_eq!(rig.slot.held(), [0_u64; 0]);
    rig.live(1, 10, vec![stored(10)]);
    assert_eq!(rig.slot.held(), [10]);
}

#[test]
fn e4_a_live_removal_wins_over_an_older_replayed_store() {
    let mut rig = following(3);
    // 3 stored A and was lost; 4 removes it, and is heard before the replay of 3.
    rig.live(1, 4, vec![removed(77)]);
    rig.answer(vec![frame(1, 3, vec![stored(77)]), frame(1, 4, vec![removed(77)])]);
    assert_eq!(rig.slot.held(), [0, 1, 2]);
    // The same when the ring's answer does not have 4 yet.
    let mut rig = following(3);
    rig.live(1, 4, vec![removed(77)]).answer(vec![frame(1, 3, vec![stored(77)])]);
    assert_eq!(rig.slot.held(), [0, 1, 2]);
}

#[test]
fn e5_cleared_alone_or_first_empties_this_slot() {
    let mut rig = following(5);
    rig.live(1, 5, vec![cleared()]);
    assert_eq!(rig.slot.held(), [0_u64; 0]);
    rig.live(1, 6, vec![stored(1)]).live(1, 7, vec![cleared(), stored(2)]);
    assert_eq!(rig.slot.held(), [2]);
}

#[test]
fn a_cleared_cache_ends_being_cold() {
    let mut rig = following(5);
    rig.live(1, 8, vec![stored(8)]).fail();
    assert!(rig.stream.is_cold());
    rig.live(1, 9, vec![cleared(), stored(9)]);
    assert!(!rig.stream.is_cold());
}

#[test]
fn e12_what_comes_twice_is_counted_once_and_two_copies_twice() {
    let mut rig = following(3);
    rig.live(1, 3, vec![stored(9)]).live(1, 4, vec![stored(9)]);
    // The network's repetition is none of the engine's.
    rig.live(1, 4, vec![stored(9)]).live(1, 3, vec![stored(9)]);
    assert_eq!(rig.counted(Count::Duplicate), 2);
    rig.live(1, 5, vec![removed(9)]);
    assert!(rig.slot.held().contains(&9), "one copy is left");
    rig.live(1, 6, vec![removed(9)]);
    assert!(!rig.slot.held().contains(&9));
}

#[test]
fn live_batches_that_a_replay_brought_before_are_dropped() {
    let mut rig = following(3);
    rig.live(1, 4, vec![stored(4)]);
    // The ring is ahead of what has come through the live socket.
    rig.answer((2..9).map(|seq| frame(1, seq, vec![stored(seq)])).collect());
    for seq in 5..10 {
        rig.live(1, seq, vec![stored(seq)]);
    }
    assert_eq!(rig.slot.held(), (0..10).collect::<Vec<_>>());
    assert!(rig.asked.is_none());
    assert_eq!(rig.slot.copies(6), 1);
}

#[test]
fn too_many_batches_that_wait_are_dropped_and_asked_for_again() {
    let ring = |to: u64| (0..to).map(|seq| frame(1, seq, vec![stored(seq)])).collect::<Vec<_>>();
    let mut rig = following(1);
    let last = 2 + asking::HELD_MAX as u64 + 10;
    for seq in 2..last {
        rig.live(1, seq, vec![stored(seq)]);
    }
    assert!(rig.counted(Count::HeldDropped) >= 10);
    rig.answer(ring(3));
    rig.live(1, last, vec![stored(last)]);
    rig.answer(ring(last + 1));
    assert_eq!(rig.slot.held(), (0..=last).collect::<Vec<_>>());
    let heavy =
        KvEvent::Removed { hashes: vec![EngineHash(0); asking::HELD_WEIGHT_MAX], tier: Tier::Gpu, group: 0 };
    rig.live(1, last + 3, vec![stored(1)]).live(1, last + 4, vec![heavy]);
    assert!(rig.counted(Count::HeldDropped) >= 11, "weight is limited, too");
}

#[test]
fn a_lost_last_batch_is_found_by_comparing_with_the_ring() {
    let mut rig = following(3);
    rig.tick(IDLE_CHECK);
    assert_eq!(rig.asked.map(|(_, from)| from), Some(2));
    rig.answer((2..4).map(|seq| frame(1, seq, vec![stored(seq)])).collect());
    assert_eq!(rig.slot.held(), [0, 1, 2, 3]);
}

#[test]
fn a_ring_with_holes_ends_cold_and_not_in_a_circle() {
    let mut rig = following(3);
    rig.live(1, 5, vec![stored(5)]);
    // The publisher's own queue dropped 3 and 4: no replay will bring them.
    let mut rounds = 0;
    while rig.asked.is_some() {
        rig.answer(vec![frame(1, 2, vec![stored(2)])]);
        rounds += 1;
        assert!(rounds <= asking::FRUITLESS_MAX + 1, "asks for ever");
    }
    assert_eq!(rig.slot.held(), [5]);
    assert!(rig.stream.is_cold());
}

#[test]
fn e11_a_rank_that_serves_and_says_nothing_is_seen() {
    let mut rig = Rig::default();
    let silence = |rig: &Rig, link| rig.stream.silence(rig.now, link);
    rig.step(Input::Served(SILENT_SERVED - 1)).tick(SILENT_AFTER);
    assert_eq!(silence(&rig, Link::Up), None, "so few requests may fill no block");
    rig.step(Input::Served(1));
    let causes = [
        (Link::Off, Cause::Off),
        (Link::NotPublished, Cause::NotPublished),
        (Link::Undiscovered, Cause::Undiscovered),
        (Link::Connecting, Cause::NotConnected),
        (Link::Up, Cause::NothingPublished),
    ];
    for (link, cause) in causes {
        assert_eq!(silence(&rig, link), Some(cause));
    }
    rig.step(Input::Connected).answer(vec![frame(1, 0, vec![stored(1)])]);
    assert_eq!(silence(&rig, Link::Up), Some(Cause::Topic), "the ring has what never came");
    rig.live(1, 1, vec![stored(2)]);
    assert_eq!(silence(&rig, Link::Up), None, "it is heard");
    rig.step(Input::Served(SILENT_SERVED)).tick(SILENT_AFTER);
    assert_eq!(silence(&rig, Link::Up), Some(Cause::Stopped));
    let mut other = Rig::default();
    other.step(Input::Served(SILENT_SERVED)).step(Input::Connected).answer(Vec::new());
    other.live(1, 0, vec![cleared()]).live(1, 1, vec![cleared()]).tick(SILENT_AFTER);
    assert_eq!(silence(&other, Link::Up), Some(Cause::NotEvents));
}

#[test]
fn e11_a_rank_that_does_nothing_is_not_silent() {
    let mut rig = following(3);
    rig.tick(Millis(10 * SILENT_AFTER.0));
    assert_eq!(rig.stream.silence(rig.now, Link::Up), None);
}
