//! Sources that go away, cannot replay, or are given up: nothing is believed for ever, and nothing is forgotten without a reason.

use super::asking::REPLAY_MAX;
use super::model::{frame, stored};
use super::*;
use crate::state::kv_stream::LINK_AWAY_MAX;

impl Rig {
    fn fail_with(&mut self, failure: ReplayFailure) -> &mut Self {
        let (attempt, _) = self.asked();
        self.step(Input::ReplayFailed(attempt, failure))
    }

    fn link(&mut self, link: Link) -> &mut Self {
        self.step(Input::Link(link))
    }

    /// So many ticks, a second apart.
    fn pass(&mut self, seconds: u64) -> &mut Self {
        for _ in 0..seconds {
            self.tick(Millis(1000));
        }
        self
    }
}

/// As the ring of a publisher that lives on.
fn ring(upto: u64) -> Vec<Frame> {
    (0..upto).map(|seq| frame(1, seq, vec![stored(seq)])).collect()
}

#[test]
fn a_source_that_is_given_up_leaves_nothing_and_is_heard_no_more() {
    for input in [Input::Link(Link::NotPublished), Input::Link(Link::Off), Input::Gone] {
        let mut rig = following(10);
        rig.step(input.clone());
        assert_eq!(rig.slot.held(), [0_u64; 0], "{input:?}");
        assert!(rig.stream.is_cold(), "{input:?}");
        // What was under way when it was given up.
        rig.live(1, 10, vec![stored(10)]);
        assert_eq!((rig.slot.held().len(), rig.counted(Count::SourceGone)), (0, 1), "{input:?}");
        rig.pass(120);
        assert!(rig.asked.is_none(), "there is nobody to ask");
    }
}

#[test]
fn a_source_that_was_given_up_is_believed_again_once_it_is_connected() {
    let mut rig = following(10);
    rig.link(Link::NotPublished).link(Link::Connecting).link(Link::Up).step(Input::Connected);
    assert_eq!(rig.asked.map(|(_, from)| from), Some(0));
    rig.answer(ring(3));
    assert_eq!(rig.slot.held(), [0, 1, 2]);
    assert!(!rig.stream.is_cold());
    // Declared off, a connection that is about to end is nobody's wish; a push is.
    rig.link(Link::Off).step(Input::Connected);
    assert!(rig.asked.is_none());
    rig.link(Link::Pushed).live(1, 0, vec![stored(7)]);
    assert_eq!(rig.slot.held(), [7]);
}

#[test]
fn a_link_that_stays_away_makes_the_slot_cold_and_empty_and_a_short_cut_does_not() {
    let mut short = following(10);
    short.link(Link::Connecting).tick(Millis(LINK_AWAY_MAX.0 - 1));
    assert_eq!(short.slot.held().len(), 10);
    short.link(Link::Up).step(Input::Connected).answer(ring(11));
    short.tick(LINK_AWAY_MAX);
    assert_eq!(short.slot.held().len(), 11);
    assert!(!short.stream.is_cold());

    for link in [Link::Connecting, Link::Undiscovered] {
        let mut long = following(10);
        long.link(link).pass(LINK_AWAY_MAX.0 / 1000);
        assert_eq!(long.slot.held(), [0_u64; 0]);
        assert!(long.stream.is_cold());
        assert_eq!(long.stream.trouble(long.now), Some(Trouble::LinkAway));
        assert_eq!(long.pass(100).counted(Count::Cold), 1, "once");
        // The publisher lived on: all of it comes back.
        long.link(Link::Up).step(Input::Connected).answer(ring(12));
        assert_eq!(long.slot.held().len(), 12);
        assert!(!long.stream.is_cold());
        assert_eq!(long.stream.trouble(long.now), None);
    }
}

/// A connection that is made again and again, and lost before its replay says whether this is still the publisher it was.
#[test]
fn a_link_that_comes_and_goes_is_away_until_a_replay_was_answered() {
    let mut rig = following(10);
    for _ in 0..LINK_AWAY_MAX.0 / 1000 {
        assert_eq!(rig.slot.held().len(), 10);
        rig.link(Link::Connecting).link(Link::Up).step(Input::Connected).tick(Millis(1000));
    }
    rig.link(Link::Connecting);
    assert_eq!(rig.slot.held(), [0_u64; 0]);
    assert!(rig.stream.is_cold());
}

#[test]
fn a_rank_that_is_never_reached_is_cold() {
    let mut rig = Rig::default();
    rig.link(Link::Connecting).pass(LINK_AWAY_MAX.0 / 1000);
    assert!(rig.stream.is_cold());
    rig.link(Link::Up).step(Input::Connected).answer(Vec::new());
    assert!(!rig.stream.is_cold(), "nothing was published: nothing is missing");
}

#[test]
fn idleness_is_no_loss_where_nobody_can_replay() {
    // Pushed, from number 0 on: nothing was ever asked.
    let mut pushed = Rig::default();
    pushed.link(Link::Pushed).live(1, 0, vec![stored(0)]).live(1, 1, vec![stored(1)]);
    // Subscribed to, without a replay socket.
    let mut subscribed = Rig::default();
    subscribed.link(Link::Up).step(Input::Connected).fail().live(1, 7, vec![stored(0)]);
    subscribed.live(1, 8, vec![stored(1)]);
    for rig in [&mut pushed, &mut subscribed] {
        for _ in 0..10 {
            rig.tick(IDLE_CHECK);
            if rig.asked.is_some() {
                rig.fail();
            }
        }
        assert_eq!(rig.slot.held(), [0, 1]);
        assert!(rig.counted(Count::ReplayAsked) <= 1, "asked in vain again and again");
    }
    assert!(!pushed.stream.is_cold());
}

#[test]
fn a_comparison_that_fails_costs_nothing_and_is_made_again() {
    let mut rig = following(3);
    rig.tick(IDLE_CHECK);
    rig.live(1, 3, vec![stored(3)]).fail_with(ReplayFailure::Unreachable);
    assert_eq!(rig.slot.held(), [0, 1, 2, 3], "what waited is applied");
    assert!(!rig.stream.is_cold());
    assert_eq!(rig.stream.trouble(rig.now), Some(Trouble::ReplayUnreachable));
    rig.tick(IDLE_CHECK).answer(ring(5));
    assert_eq!(rig.slot.held(), [0, 1, 2, 3, 4]);
    assert_eq!(rig.stream.trouble(rig.now), None);
    // A loss that is known costs what it must.
    rig.live(1, 9, vec![stored(9)]).fail_with(ReplayFailure::Unreachable);
    assert_eq!(rig.slot.held(), [9]);
    assert!(rig.stream.is_cold());
}

#[test]
fn a_replay_that_is_not_reached_makes_the_slot_cold_once_and_the_live_stream_warms_it() {
    let mut rig = Rig::default();
    rig.link(Link::Up).step(Input::Connected).fail_with(ReplayFailure::Unreachable);
    assert!(rig.stream.is_cold());
    let mut asked = 0;
    for seq in 100..700 {
        rig.live(1, seq, vec![stored(seq)]).tick(Millis(1000));
        if rig.asked.is_some() {
            asked += 1;
            rig.fail_with(ReplayFailure::Unreachable);
        }
        assert_eq!(rig.slot.held().len() as u64, seq - 99, "nothing is forgotten again");
    }
    assert!((3..=8).contains(&asked), "{asked} times in ten minutes");
    assert_eq!(
        (rig.counted(Count::Cold), rig.stream.trouble(rig.now)),
        (1, Some(Trouble::ReplayUnreachable))
    );
    // Once it is reached, the whole takes the place of the part, and live batches wait meanwhile.
    while rig.asked.is_none() {
        rig.tick(REPLAY_MAX);
    }
    rig.live(1, 700, vec![stored(700)]);
    assert_eq!(rig.slot.held().len(), 600, "it waits, and nothing goes before the answer");
    rig.answer(ring(700));
    assert_eq!(rig.slot.held().len(), 701);
    assert_eq!(rig.slot.copies(500), 1);
    assert!(!rig.stream.is_cold());
    assert_eq!(rig.stream.trouble(rig.now), None);
}

/// Found by chance: the slot was made whole by a first batch, and a late attempt to repair it kept the comparison from being made.
#[test]
fn what_was_made_whole_needs_no_repair_and_is_compared() {
    let mut rig = Rig::default();
    for _ in 0..4 {
        rig.step(Input::Connected).fail_with(ReplayFailure::Broken);
    }
    rig.live(1, 0, vec![stored(0)]);
    assert!(!rig.stream.is_cold());
    rig.tick(IDLE_CHECK).answer(ring(2));
    assert_eq!(rig.slot.held(), [0, 1]);
}

#[test]
fn a_repair_that_breaks_off_half_way_leaves_what_is_known() {
    let mut rig = following(3);
    rig.live(1, 5, vec![stored(5)]).fail_with(ReplayFailure::Broken);
    rig.tick(Millis(5000));
    let (attempt, from) = rig.asked();
    assert_eq!(from, 0);
    rig.step(Input::Replayed(attempt, frame(1, 0, vec![stored(0)])));
    rig.live(1, 6, vec![stored(6)]).step(Input::ReplayFailed(attempt, ReplayFailure::Broken));
    assert_eq!(rig.slot.held(), [6]);
    assert!(rig.stream.is_cold());
}

#[test]
fn silence_behind_a_replay_that_is_not_reached_is_not_said_to_be_the_engines() {
    let mut rig = Rig::default();
    rig.link(Link::Up).step(Input::Connected).fail_with(ReplayFailure::Unreachable);
    rig.step(Input::Served(SILENT_SERVED)).tick(SILENT_AFTER);
    assert_eq!(rig.stream.silence(rig.now, Link::Up), Some(Cause::ReplayUnreachable));
}
