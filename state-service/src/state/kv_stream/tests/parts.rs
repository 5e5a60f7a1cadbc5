//! Batches that come in parts: each part shares what became of the first.

use super::asking::HELD_WEIGHT_MAX;
use super::model::{cleared, frame, removed, stored};
use super::*;

impl Rig {
    fn more(&mut self, seq: u64, events: Vec<KvEvent>) -> &mut Self {
        self.step(Input::More { seq, batch: KvBatch { events } })
    }
}

#[test]
fn parts_are_applied_after_their_beginning_and_once() {
    let mut rig = following(2);
    rig.live(1, 2, vec![stored(2)]).more(2, vec![stored(20)]).more(2, vec![removed(0)]);
    assert_eq!(rig.slot.held(), [1, 2, 20]);
    // The same batch comes again, in parts as before.
    rig.live(1, 2, vec![stored(2)]).more(2, vec![stored(20)]).more(2, vec![removed(0)]);
    assert_eq!((rig.slot.held(), rig.slot.copies(20)), (vec![1, 2, 20], 1));
    // Parts of nothing that was heard.
    rig.more(7, vec![stored(7)]);
    assert_eq!(rig.slot.held(), [1, 2, 20]);
    rig.live(1, 3, vec![stored(3)]).more(3, vec![cleared(), stored(30)]);
    assert_eq!(rig.slot.held(), [30]);
}

#[test]
fn parts_wait_with_their_beginning() {
    let mut rig = following(2);
    rig.live(1, 3, vec![stored(3)]).more(3, vec![stored(30)]);
    assert_eq!(rig.slot.held(), [0, 1]);
    let (attempt, _) = rig.asked();
    // The ring has both, in parts as well; the one that waits is known by then.
    for (seq, block) in [(1, 1), (2, 2), (3, 3)] {
        rig.step(Input::Replayed(attempt, frame(1, seq, vec![stored(block)])));
        if seq > 1 {
            rig.more(seq, vec![stored(10 * block)]);
        }
    }
    rig.step(Input::ReplayEnd(attempt));
    assert_eq!(rig.slot.held(), [0, 1, 2, 3, 20, 30]);
    assert_eq!([3, 30].map(|block| rig.slot.copies(block)), [1, 1]);
    // Time may pass between two parts, and nothing else of the rank.
    rig.live(1, 5, vec![stored(5)]).tick(asking::REPLAY_MAX).more(5, vec![stored(50)]);
    assert_eq!(rig.slot.held(), [5, 50]);
    assert!(rig.stream.is_cold());
}

#[test]
fn a_batch_whose_parts_are_too_much_to_wait_is_asked_for_again() {
    let mut rig = following(2);
    rig.live(1, 3, vec![stored(3)]);
    let heavy = KvEvent::Removed { hashes: vec![EngineHash(0); HELD_WEIGHT_MAX], tier: Tier::Gpu, group: 0 };
    rig.more(3, vec![heavy]).more(3, vec![stored(30)]);
    assert_eq!(rig.counted(Count::HeldDropped), 1);
    rig.answer((1..3).map(|seq| frame(1, seq, vec![stored(seq)])).collect());
    assert_eq!(rig.slot.held(), [0, 1, 2], "nothing of it was applied");
    rig.live(1, 4, vec![stored(4)]);
    rig.answer((2..5).map(|seq| frame(1, seq, vec![stored(seq)])).collect());
    assert_eq!(rig.slot.held(), [0, 1, 2, 3, 4]);
}
