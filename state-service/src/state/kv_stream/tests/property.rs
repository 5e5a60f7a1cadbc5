//! Whatever is lost, repeated, restarted or cut off: once everything has come to rest the slot holds the truth, or is cold and holds
//! a part of it. Never a phantom.

use super::model::{Slot, cleared, frame, removed, stored};
use crate::state::kv_event::KvEvent;
use crate::state::kv_stream::{Attempt, Effect, Frame, IDLE_CHECK, Input, KvStream, ReplayFailure};
use proptest::prelude::*;
use routing::time::{Millis, Timestamp};
use std::collections::VecDeque;

/// Batches the publisher keeps for replays.
const RING: usize = 6;

#[derive(Clone, Debug)]
enum Step {
    /// A batch is published.
    Publish {
        what: u8,
        block: u64,
    },
    /// The next batch under way arrives.
    Deliver,
    /// It is lost.
    Lose,
    /// A copy of it arrives, and it is still under way.
    Repeat,
    /// The publisher begins anew; connections break.
    Restart,
    /// So many batches of the new life are published before anyone connects.
    RestartWithout {
        batches: u8,
    },
    /// The connection breaks; what is under way is lost.
    Break,
    /// One more answer of the replay arrives.
    Answer,
    /// The replay breaks off.
    CutReplay,
    Tick {
        ms: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0_u8..8, 0_u64..6).prop_map(|(what, block)| Step::Publish { what, block }),
        8 => Just(Step::Deliver),
        2 => Just(Step::Lose),
        1 => Just(Step::Repeat),
        1 => Just(Step::Restart),
        1 => (0_u8..20).prop_map(|batches| Step::RestartWithout { batches }),
        1 => Just(Step::Break),
        8 => Just(Step::Answer),
        1 => Just(Step::CutReplay),
        2 => (0_u64..40_000).prop_map(|ms| Step::Tick { ms }),
    ];
    prop::collection::vec(step, 0..120)
}

#[derive(Default)]
struct World {
    now: Timestamp,
    life: u64,
    next: u64,
    truth: Slot,
    ring: VecDeque<Frame>,
    under_way: VecDeque<Frame>,
    replay: Option<(Attempt, VecDeque<Frame>)>,
    stream: KvStream,
    slot: Slot,
}

impl World {
    fn publish(&mut self, what: u8, block: u64) -> Frame {
        let event: KvEvent = match what {
            0..=4 => stored(block),
            5 | 6 if self.truth.copies(block) > 0 => removed(block),
            5 | 6 => stored(block),
            _ => cleared(),
        };
        let frame = frame(self.life, self.next, vec![event]);
        self.next += 1;
        self.truth.apply(&frame.batch);
        self.ring.push_back(frame.clone());
        if self.ring.len() > RING {
            self.ring.pop_front();
        }
        frame
    }

    fn input(&mut self, input: Input) {
        let mut out = Vec::new();
        self.stream.step(self.now, input, &mut out);
        for effect in out {
            match effect {
                Effect::Apply(batch) => self.slot.apply(&batch),
                Effect::Clear => self.slot.clear(),
                Effect::AskReplay { attempt, from } => {
                    // What the ring has when the question arrives.
                    let answers = self.ring.iter().filter(|frame| frame.seq >= from).cloned().collect();
                    self.replay = Some((attempt, answers));
                }
                Effect::Count(_) => {}
            }
        }
    }

    fn restart(&mut self, batches: u8) {
        self.life += 1;
        self.next = 0;
        self.truth.clear();
        self.ring.clear();
        self.under_way.clear();
        for batch in 0..batches {
            self.publish(0, u64::from(batch));
        }
        if let Some((attempt, _)) = self.replay.take() {
            self.input(Input::ReplayFailed(attempt, ReplayFailure::Broken));
        }
        self.input(Input::Connected);
    }

    fn answer(&mut self) {
        let Some((attempt, answers)) = &mut self.replay else { return };
        let attempt = *attempt;
        match answers.pop_front() {
            Some(frame) => self.input(Input::Replayed(attempt, frame)),
            None => {
                self.replay = None;
                self.input(Input::ReplayEnd(attempt));
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Publish { what, block } => {
                let frame = self.publish(*what, *block);
                self.under_way.push_back(frame);
            }
            Step::Deliver => {
                if let Some(frame) = self.under_way.pop_front() {
                    self.input(Input::Live(frame));
                }
            }
            Step::Lose => drop(self.under_way.pop_front()),
            Step::Repeat => {
                if let Some(frame) = self.under_way.front().cloned() {
                    self.input(Input::Live(frame));
                }
            }
            Step::Restart => self.restart(0),
            Step::RestartWithout { batches } => self.restart(*batches),
            Step::Break => {
                self.under_way.clear();
                self.input(Input::Connected);
            }
            Step::Answer => self.answer(),
            Step::CutReplay => {
                if let Some((attempt, _)) = self.replay.take() {
                    self.input(Input::ReplayFailed(attempt, ReplayFailure::Broken));
                }
            }
            Step::Tick { ms } => self.tick(Millis(*ms)),
        }
    }

    fn tick(&mut self, after: Millis) {
        self.now += after;
        self.input(Input::Tick);
    }

    /// Nothing is lost any more, and all answers come.
    fn settle(&mut self) {
        for _ in 0..100 {
            while let Some(frame) = self.under_way.pop_front() {
                self.input(Input::Live(frame));
            }
            while self.replay.is_some() {
                self.answer();
            }
            if !self.stream.is_asking() {
                return;
            }
        }
        panic!("asks for ever");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_slot_ends_with_the_truth_or_cold_and_without_phantoms(steps in steps()) {
        let mut world = World::default();
        world.input(Input::Connected);
        for step in &steps {
            world.step(step);
        }
        world.settle();
        // The last batch may be lost without a successor: the comparison with the ring finds it.
        world.tick(IDLE_CHECK);
        world.settle();
        prop_assert!(world.slot.is_within(&world.truth), "phantom: {:?} of {:?}", world.slot, world.truth);
        if !world.stream.is_cold() {
            prop_assert_eq!(&world.slot, &world.truth);
        }
        // And it goes on from there.
        let frame = world.publish(0, 3);
        world.input(Input::Live(frame));
        world.settle();
        prop_assert!(world.slot.is_within(&world.truth));
        prop_assert!(world.slot.held().contains(&3));
    }
}
