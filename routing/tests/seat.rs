//! Seats: absolute shares of VMs, summed into gauges, and what a dead VM leaves behind.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use routing::id::Epoch;
use routing::seat::{Census, GAUGES_MAX, Look, STILL_MAX, Share, free, may_sit};

fn share(vm: u64, beat: u64, counts: &[(u32, u32)]) -> Vec<u8> {
    Share { vm: Epoch(vm), beat, counts: counts.to_vec() }.to_bytes()
}

fn look(census: &mut Census, seats: &[Vec<u8>]) -> Look {
    census.look(seats.iter().enumerate().map(|(n, bytes)| (u32::try_from(n).unwrap(), bytes.as_slice())))
}

#[test]
fn a_share_reads_back_and_garbage_does_no_harm() {
    let bytes = share(7, 9, &[(0, 3), (41, 1)]);
    assert_eq!(Share::read(&bytes).map(|s| s.to_bytes()), Some(bytes.clone()));
    assert_eq!(Share::read(&free()), None);
    for cut in 0..bytes.len() {
        let read = Share::read(&bytes[..cut]);
        assert_eq!(read.is_some(), cut >= 16, "{cut}");
    }
    assert!(may_sit(&free(), Epoch(7)) && may_sit(&bytes, Epoch(7)) && !may_sit(&bytes, Epoch(8)));
}

#[test]
fn shares_are_summed_and_only_changes_are_shown() {
    let mut census = Census::default();
    let first = look(&mut census, &[share(1, 1, &[(0, 2), (3, 1)]), free(), share(2, 1, &[(0, 5)])]);
    assert_eq!(first.gauges, [(0, 7), (3, 1)]);
    let same = look(&mut census, &[share(1, 2, &[(0, 2), (3, 1)]), free(), share(2, 2, &[(0, 5)])]);
    assert_eq!(same, Look::default());
    let fallen = look(&mut census, &[share(1, 3, &[]), free(), share(2, 3, &[(0, 4)])]);
    assert_eq!(fallen.gauges, [(3, 0), (0, 4)]);
    let gone = look(&mut census, &[share(1, 4, &[]), free(), free()]);
    assert_eq!(gone.gauges, [(0, 0)]);
}

/// The watching VM changes: what its predecessor showed, the new one has never seen.
#[test]
fn a_new_watcher_tells_every_gauge_once() {
    let (mut before, mut after) = (Census::default(), Census::default());
    look(&mut before, &[share(1, 1, &[(0, 2), (3, 1)])]);
    after.doubt(0..5);
    let first = look(&mut after, &[share(2, 1, &[(0, 5)])]);
    assert_eq!(first.gauges, [(1, 0), (2, 0), (3, 0), (4, 0), (0, 5)]);
    assert_eq!(look(&mut after, &[share(2, 2, &[(0, 5)])]), Look::default());
    // The old one comes back: it remembers 2, which is right again and shown no more.
    before.doubt(0..1);
    assert_eq!(look(&mut before, &[share(1, 2, &[(0, 2)])]).gauges, [(3, 0), (0, 2)]);
}

#[test]
fn a_seat_that_stands_still_is_dead_and_takes_its_share_along() {
    let mut census = Census::default();
    let dead = share(1, 5, &[(2, 9)]);
    let mut looks = 0;
    let found = loop {
        looks += 1;
        let found = look(&mut census, &[dead.clone(), share(2, looks, &[(2, 1)])]);
        if !found.dead.is_empty() {
            break found;
        }
        assert!(looks <= u64::from(STILL_MAX) + 1, "never found dead");
    };
    assert_eq!((found.dead, found.gauges), (vec![(0, Epoch(1))], vec![(2, 1)]));
    assert_eq!(looks, u64::from(STILL_MAX) + 2, "one look to see it, then so many that stand still");
    // It was not dead after all: its share is back at once.
    let back = look(&mut census, &[share(1, 6, &[(2, 9)]), share(2, 99, &[(2, 1)])]);
    assert_eq!((back.dead, back.gauges), (vec![], vec![(2, 10)]));
    // A successor on the same seat starts afresh.
    let successor = look(&mut census, &[share(3, 6, &[]), share(2, 100, &[(2, 1)])]);
    assert_eq!((successor.dead, successor.gauges), (vec![], vec![(2, 1)]));
}

#[test]
fn no_share_defines_endless_gauges() {
    let mut census = Census::default();
    let found = look(&mut census, &[share(1, 1, &[(GAUGES_MAX, 1), (u32::MAX, 1), (GAUGES_MAX - 1, 1)])]);
    assert_eq!(found.gauges, [(GAUGES_MAX - 1, 1)]);
}
