//! Bookings at their bounds, and what prompts share by their marks.

use super::super::binding::Slot;
use super::bookings::{Bookings, Load, Owner, Times};
use super::runs::{Depths, Runs, marks};
use routing::block::{Chain, Namespace};
use routing::id::Rank;
use routing::time::{Millis, Timestamp};

const TIMES: Times = Times { within: Millis(1000), expected: Millis(100) };

fn count(bookings: &Bookings, word: &str) -> u64 {
    bookings.counts().find(|(name, _)| *name == word).unwrap().1
}

fn chain(tokens: &[u32]) -> Chain {
    Chain::of(Namespace::default(), 1, tokens)
}

fn load(tokens: &[u32]) -> Load {
    Load { marks: marks(&chain(tokens).hashes), blocks: tokens.len() as u64, prefill: 1 }
}

#[test]
fn at_each_bound_the_oldest_goes_and_is_counted() {
    let mut bookings = Bookings::default();
    let slot = Slot::new(1, None);
    for n in 0..65_536 + 10 {
        assert!(bookings.book(Timestamp(n), Owner::Host(n.into()), slot, load(&[n as u32]), TIMES));
    }
    assert_eq!((count(&bookings, "evicted"), count(&bookings, "expected_dropped")), (10, 10));
    assert_eq!((bookings.has(Owner::Host(9)), bookings.has(Owner::Host(10))), (false, true));
    let [booked, expected, _] = bookings.sizes();
    assert_eq!((booked, expected), (65_536, 65_536));
    // Ends of requests that were never heard of.
    for n in 0..16_384 + 10 {
        bookings.end(Timestamp(70_000), Owner::Host((1 << 64) + n));
    }
    let mut late =
        |n: u128| bookings.book(Timestamp(70_001), Owner::Host((1 << 64) + n), slot, load(&[1]), TIMES);
    assert!(late(9), "forgotten");
    assert!(!late(10));
    bookings.expire(Timestamp(1 << 32));
    assert_eq!(bookings.sizes(), [0, 0, 0]);
}

#[test]
fn past_the_last_seat_nothing_is_booked_and_a_seat_that_is_free_is_given_again() {
    let mut bookings = Bookings::default();
    let mut book = |n: u32| {
        let slot = Slot::new(n.into(), Some(Rank(0)));
        bookings.book(Timestamp(0), Owner::Host(n.into()), slot, load(&[n]), TIMES)
    };
    assert!((0..16_384).all(&mut book));
    assert!(!book(16_384));
    assert_eq!(bookings.settle(7, |_| false).len(), 1);
    assert_eq!((count(&bookings, "no_seat"), count(&bookings, "orphaned")), (1, 1));
    assert!(bookings.book(Timestamp(0), Owner::Host(1 << 64), Slot::new(1 << 40, None), load(&[1]), TIMES));
}

/// Seen to the last mark both have, never further than it is; ends are marks too.
#[test]
fn what_two_prompts_share_is_never_overstated() {
    for (of, shared, seen) in [
        (10, 8, 8),
        (10, 9, 8),
        (10, 10, 10),
        (13, 13, 13),
        (100, 99, 96),
        (600, 511, 496),
        (5000, 4500, 4480),
    ] {
        let one: Vec<u32> = (0..of).collect();
        let mut other = one.clone();
        other.iter_mut().skip(shared as usize).for_each(|token| *token += 1_000_000);
        let mut runs = Runs::default();
        assert_eq!(runs.enter(3, &marks(&chain(&one).hashes), true, Timestamp(0)), u64::from(of));
        let mut depths = Depths::default();
        runs.find(&marks(&chain(&other).hashes), (Timestamp(1), 4), &mut depths);
        assert_eq!(depths.of(3).active, seen, "{shared} of {of}");
        assert_eq!(depths.of(2).active, 0);
        assert_eq!(runs.leave(3, &marks(&chain(&one).hashes), true), u64::from(of));
        assert_eq!(runs.len(), 0);
    }
}

#[test]
fn a_seat_goes_to_another_slot_once_its_own_is_gone() {
    let mut bookings = Bookings::default();
    let book = |bookings: &mut Bookings, worker: u32| {
        let slot = Slot::new(worker.into(), None);
        assert!(bookings.book(Timestamp(1), Owner::Host(worker.into()), slot, load(&[worker]), TIMES));
        bookings.seat_of(slot)
    };
    assert_eq!([1, 2].map(|worker| book(&mut bookings, worker)), [Some(0), Some(1)]);
    assert!(bookings.settle(1, |_| true).is_empty(), "it stays");
    assert_eq!(bookings.settle(1, |_| false), [0]);
    assert!(bookings.settle(1, |_| false).is_empty(), "nothing is freed twice");
    assert_eq!((book(&mut bookings, 3), book(&mut bookings, 1)), (Some(0), Some(2)));
    assert_eq!((bookings.settle(3, |_| false), bookings.settle(1, |_| false)), (vec![0], vec![2]));
}
