//! Waiting for bodies: bounded in number and time, and given up where no body ever comes.

use routing::time::{Millis, Timestamp};
use routing::waits::{WAITS_MAX, Waits};

const LIMIT: Millis = Millis(1000);

#[test]
fn those_that_wait_too_long_are_told_until_they_end() {
    let mut waits = Waits::default();
    for (id, since) in [(7, 0), (8, 500), (9, 5000)] {
        assert!(waits.begin(id, Timestamp(since), LIMIT));
    }
    assert!(waits.overdue(Timestamp(999)).contains(&9), "its clock went back: it must not wait for ever");
    assert_eq!(waits.overdue(Timestamp(5000)), [7, 8]);
    assert_eq!(waits.overdue(Timestamp(5000)), [7, 8]);
    waits.end(7);
    waits.end(7);
    waits.end(1234);
    assert_eq!(waits.overdue(Timestamp(6000)), [8, 9]);
}

#[test]
fn only_so_many_wait() {
    let mut waits = Waits::default();
    for id in 0..u32::try_from(WAITS_MAX).unwrap() {
        assert!(waits.begin(id, Timestamp(1), LIMIT));
    }
    assert!(!waits.begin(5000, Timestamp(1), LIMIT));
    waits.end(3);
    assert!(waits.begin(5000, Timestamp(1), LIMIT));
}

#[test]
fn waiting_is_given_up_where_no_body_comes_and_tried_again() {
    let mut waits = Waits::default();
    let told: Vec<bool> = (0..5).map(|_| waits.rescued()).collect();
    assert_eq!(told, [true, false, false, false, false], "told once, and at once");
    let tries: Vec<u32> = (1..=1024).filter(|id| waits.begin(*id, Timestamp(1), LIMIT)).collect();
    assert_eq!(tries, [8, 256, 512, 768, 1024]);
    waits.saw_body(0, Timestamp(0));
    assert!((0..100).all(|id| waits.begin(id, Timestamp(1), LIMIT)), "bodies come after all");
}

#[test]
fn slow_senders_are_no_sign_where_bodies_come() {
    let mut waits = Waits::default();
    waits.saw_body(0, Timestamp(0));
    assert!((0..100).all(|_| !waits.rescued()));
    assert!(waits.begin(1, Timestamp(1), LIMIT));
}

#[test]
fn a_body_that_keeps_coming_is_waited_for_but_not_for_ever() {
    let (mut waits, limit) = (Waits::default(), Millis(1000));
    assert!(waits.begin(1, Timestamp(0), limit));
    for at in (900..29_000).step_by(900) {
        assert_eq!(waits.overdue(Timestamp(at)), [0; 0], "at {at}");
        waits.saw_body(1, Timestamp(at));
    }
    assert_eq!(waits.overdue(Timestamp(30_000)), [1], "thirty times the limit in all");
    assert!(waits.begin(2, Timestamp(0), limit));
    assert!(waits.overdue(Timestamp(1000)).contains(&2), "one that stands still is not");
}
