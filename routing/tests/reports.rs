//! What the service has not heard yet: one report on its way, nothing lost by a lost one, a stated limit.

mod common;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use common::{pool_name, small_fleet, target};
use routing::contract::{Caller, Entry, InFlight, REPORT_ENTRIES_MAX, Report, SessionRef, SlotFailure};
use routing::directory::Directory;
use routing::hash::worker_hash;
use routing::id::{Epoch, Rank, RankHash, RequestId, SessionId, Version};
use routing::time::Timestamp;
use routing::vm::{ENTRIES_KEPT_MAX, Reports, URGENT_ENTRIES_MAX, Vm};

fn caller() -> Caller {
    Caller { node: "envoy-1".to_owned(), vm: Epoch(7) }
}

fn touched(n: u64) -> Entry {
    let session = SessionRef { id: SessionId(u128::from(n)), rank_hash: RankHash(0) };
    Entry::Touched { session, pool: pool_name("chat"), version: Version { seq: n, writer: 0 }, slot: None }
}

fn failed(n: u64) -> Entry {
    let session = SessionRef { id: SessionId(u128::from(n)), rank_hash: RankHash(0) };
    Entry::Failed { session, pool: pool_name("chat"), request: RequestId(n), hold: None }
}

fn next(reports: &mut Reports, at: u64) -> Option<Report> {
    reports.next(Timestamp(at), &caller(), Vec::new())
}

/// Numbers of the entries of a report made by [`touched`].
fn numbers(report: &Report) -> Vec<u64> {
    let number = |entry: &Entry| match entry {
        Entry::Touched { version, .. } => version.seq,
        other => panic!("unexpected {other:?}"),
    };
    report.entries.iter().map(number).collect()
}

/// Reports that already said hello at `@0`.
fn quiet() -> Reports {
    let mut reports = Reports::default();
    assert!(next(&mut reports, 0).is_some(), "the first report opens the lease");
    reports.acknowledged();
    reports
}

#[test]
fn one_report_is_on_its_way_at_a_time() {
    let mut reports = quiet();
    reports.push(touched(1));
    let first = next(&mut reports, 100).unwrap();
    assert_eq!((numbers(&first), first.caller.clone()), (vec![1], caller()));
    reports.push(touched(2));
    assert_eq!(next(&mut reports, 200), None);
    assert_eq!(next(&mut reports, 2099), None);
    reports.acknowledged();
    assert_eq!(numbers(&next(&mut reports, 300).unwrap()), [2]);
}

#[test]
fn an_acknowledgement_ends_exactly_what_was_sent() {
    let mut reports = quiet();
    (1..=3).for_each(|n| reports.push(touched(n)));
    assert_eq!(numbers(&next(&mut reports, 100).unwrap()), [1, 2, 3]);
    reports.push(touched(4));
    assert_eq!(reports.len(), 4, "kept until acknowledged");
    reports.acknowledged();
    assert_eq!(reports.len(), 1);
    reports.acknowledged();
    assert_eq!(reports.len(), 1, "a second acknowledgement of nothing ends nothing");
    assert_eq!(numbers(&next(&mut reports, 200).unwrap()), [4]);
    reports.acknowledged();
    assert!(reports.is_empty());
}

#[test]
fn a_lost_report_is_sent_again_in_order() {
    let mut reports = quiet();
    (1..=2).for_each(|n| reports.push(touched(n)));
    let first = next(&mut reports, 100).unwrap();
    reports.lost();
    reports.push(touched(3));
    let second = next(&mut reports, 200).unwrap();
    assert_eq!(numbers(&second), [1, 2, 3]);
    assert!(second.seq > first.seq);
    // No answer at all counts as lost after two seconds.
    assert_eq!(next(&mut reports, 2199), None);
    assert_eq!(numbers(&next(&mut reports, 2200).unwrap()), [1, 2, 3]);
    reports.acknowledged();
    assert!(reports.is_empty());
}

#[test]
fn a_clock_that_goes_back_does_not_silence_reports() {
    let mut reports = quiet();
    reports.push(touched(1));
    assert!(next(&mut reports, 1_000_000).is_some());
    assert!(next(&mut reports, 500).is_some());
}

#[test]
fn a_lost_load_is_told_again() {
    let load = vec![InFlight { target: target("w0", Some(1)), count: 3 }];
    let mut reports = quiet();
    assert!(reports.next(Timestamp(100), &caller(), load.clone()).is_some(), "a new load is news");
    reports.acknowledged();
    assert_eq!(reports.next(Timestamp(200), &caller(), load.clone()), None, "an old one is not");
    assert!(reports.next(Timestamp(300), &caller(), Vec::new()).is_some());
    reports.lost();
    let again = reports.next(Timestamp(400), &caller(), Vec::new());
    assert!(again.is_some_and(|r| r.in_flight.is_empty()), "the service still believes in three");
    // Unanswered is lost, too.
    assert!(reports.next(Timestamp(2400), &caller(), Vec::new()).is_some());
    reports.acknowledged();
    assert_eq!(reports.next(Timestamp(2500), &caller(), Vec::new()), None);
}

#[test]
fn with_nothing_to_say_a_report_renews_the_lease() {
    let mut reports = quiet();
    assert_eq!(next(&mut reports, 4999), None);
    let beat = next(&mut reports, 5000).unwrap();
    assert!(beat.entries.is_empty() && beat.in_flight.is_empty());
    reports.acknowledged();
    assert_eq!(next(&mut reports, 9999), None);
    assert!(next(&mut reports, 10_000).is_some());
}

#[test]
fn a_report_has_a_limit_and_the_rest_follows() {
    let mut reports = quiet();
    let many = REPORT_ENTRIES_MAX as u64 + 10;
    (0..many).for_each(|n| reports.push(touched(n)));
    assert_eq!(next(&mut reports, 100).unwrap().entries.len(), REPORT_ENTRIES_MAX);
    reports.acknowledged();
    let rest = numbers(&next(&mut reports, 200).unwrap());
    assert_eq!(rest, (many - 10..many).collect::<Vec<_>>());
}

#[test]
fn the_oldest_entry_goes_when_too_many_are_kept() {
    let mut reports = quiet();
    let kept = ENTRIES_KEPT_MAX as u64;
    (0..kept).for_each(|n| reports.push(touched(n)));
    assert_eq!((reports.len(), reports.dropped()), (ENTRIES_KEPT_MAX, 0));
    assert_eq!(numbers(&next(&mut reports, 100).unwrap())[0], 0);
    (kept..kept + 3).for_each(|n| reports.push(touched(n)));
    assert_eq!((reports.len(), reports.dropped()), (ENTRIES_KEPT_MAX, 3));
    assert_eq!([reports.newly_dropped(), reports.newly_dropped()], [3, 0]);
    // Three of the sent ones are gone already: the acknowledgement ends only the others.
    reports.acknowledged();
    assert_eq!(numbers(&next(&mut reports, 200).unwrap())[0], REPORT_ENTRIES_MAX as u64);
}

#[test]
fn of_a_request_that_is_over_nothing_else_is_told() {
    let mut reports = quiet();
    let (begun, over) = (Entry::Prefilled { request: RequestId(7) }, Entry::Ended { request: RequestId(7) });
    reports.push(begun.clone());
    assert_eq!(next(&mut reports, 100).unwrap().entries, std::slice::from_ref(&begun));
    reports.push(over.clone());
    reports.acknowledged();
    assert_eq!(
        next(&mut reports, 200).unwrap().entries,
        std::slice::from_ref(&over),
        "what came first was heard"
    );
    reports.acknowledged();
    reports.push(begun);
    reports.push(over.clone());
    reports.push(Entry::Ended { request: RequestId(8) });
    let entries = next(&mut reports, 300).unwrap().entries;
    assert_eq!(entries, [over, Entry::Ended { request: RequestId(8) }]);
}

#[test]
fn an_urgent_report_tells_what_no_report_told_and_keeps_it() {
    let mut reports = quiet();
    assert_eq!(reports.urgent(&caller(), Vec::new()), None);
    reports.push(touched(1));
    reports.push(failed(2));
    let load = vec![InFlight { target: target("w0", None), count: 1 }];
    let urgent = reports.urgent(&caller(), load.clone()).unwrap();
    assert_eq!((urgent.entries, urgent.in_flight), (vec![touched(1), failed(2)], load));
    assert_eq!(reports.urgent(&caller(), Vec::new()), None, "told once");
    reports.push(failed(3));
    assert_eq!(reports.urgent(&caller(), Vec::new()).unwrap().entries, [failed(3)]);
    let regular = next(&mut reports, 100).unwrap();
    assert_eq!(regular.entries, [touched(1), failed(2), failed(3)]);
    assert!(regular.seq > urgent.seq, "an older load never overwrites a newer one");
}

#[test]
fn an_urgent_report_has_a_limit_and_keeps_the_newest() {
    let mut reports = quiet();
    let many = URGENT_ENTRIES_MAX as u64 + 5;
    (0..many).for_each(|n| reports.push(failed(n)));
    let urgent = reports.urgent(&caller(), Vec::new()).unwrap();
    assert_eq!(urgent.entries, (5..many).map(failed).collect::<Vec<_>>());
    assert_eq!(next(&mut reports, 100).unwrap().entries.len(), URGENT_ENTRIES_MAX + 5);
}

#[test]
fn entries_of_a_session_are_coalesced_and_the_newest_wins() {
    let mut reports = quiet();
    let of = |seq| {
        let session = SessionRef { id: SessionId(5), rank_hash: RankHash(0) };
        let version = Version { seq, writer: 0 };
        Entry::Touched { session, pool: pool_name("chat"), version, slot: None }
    };
    for seq in 1..=100_000 {
        reports.push(of(seq));
        reports.push(failed(5));
    }
    assert_eq!(
        (reports.len(), reports.dropped()),
        (2, 0),
        "an absent service costs memory for live sessions only"
    );
    assert_eq!(next(&mut reports, 100).unwrap().entries, [of(100_000), failed(5)]);
    reports.push(of(100_001));
    reports.acknowledged();
    assert_eq!(next(&mut reports, 200).unwrap().entries, [of(100_001)], "newer than what was acknowledged");
    reports.acknowledged();
    assert!(reports.is_empty());
}

#[test]
fn findings_of_a_slot_are_counted_up_and_an_answer_ends_the_run() {
    let slot = || target("w0", Some(2));
    let failed = |failure, count| Entry::SlotFailed { target: slot(), failure, count };
    let mut reports = quiet();
    for _ in 0..3 {
        reports.slot_failed(slot(), SlotFailure::Status5xx);
    }
    reports.slot_failed(slot(), SlotFailure::Connection);
    let first = next(&mut reports, 100).unwrap().entries;
    assert_eq!(first, [failed(SlotFailure::Connection, 1), failed(SlotFailure::Status5xx, 3)]);
    reports.slot_failed(slot(), SlotFailure::Connection);
    reports.lost();
    let again = next(&mut reports, 200).unwrap().entries;
    assert_eq!(
        again,
        [failed(SlotFailure::Connection, 2), failed(SlotFailure::Status5xx, 3)],
        "nothing is lost"
    );
    reports.slot_answered(slot());
    reports.lost();
    let answered = Entry::SlotAnswered { target: slot() };
    assert_eq!(next(&mut reports, 300).unwrap().entries, std::slice::from_ref(&answered), "the run is over");
    reports.acknowledged();
    reports.slot_answered(slot());
    reports.slot_failed(slot(), SlotFailure::Connection);
    let then = next(&mut reports, 400).unwrap().entries;
    assert_eq!(then, [answered, failed(SlotFailure::Connection, 1)], "failures come after the answer");
    reports.acknowledged();
    assert_eq!(next(&mut reports, 500), None);
}

#[test]
fn route_carries_what_is_unheard_about_its_session() {
    let mut reports = quiet();
    let version = Version { seq: 1, writer: 0 };
    let session = SessionRef { id: SessionId(5), rank_hash: RankHash(0) };
    let slot = Entry::SlotFailed { target: target("w0", None), failure: SlotFailure::Connection, count: 1 };
    let released = Entry::Released { session, pool: pool_name("chat"), version };
    for entry in [failed(5), touched(6), slot, released.clone()] {
        reports.push(entry);
    }
    assert_eq!(reports.about(SessionId(5)), [failed(5), released.clone()]);
    assert_eq!(reports.about(SessionId(7)), []);
    assert!(next(&mut reports, 100).is_some());
    assert_eq!(reports.about(SessionId(5)), [failed(5), released], "sent is not heard");
    reports.acknowledged();
    assert_eq!(reports.about(SessionId(5)), []);
}

#[test]
fn loads_are_absolute_and_never_negative() {
    let mut vm = Vm::new("envoy-1", Epoch(7), 1);
    let mut topology = small_fleet();
    vm.directory = Some(Directory::new(&topology));
    let hash = |name: &str| worker_hash(&common::id(name));
    vm.loads.add(hash("w0"), Some(Rank(2)));
    vm.loads.add(hash("w0"), Some(Rank(2)));
    vm.loads.add(hash("w0"), None);
    vm.loads.add(hash("w1"), None);
    assert_eq!((vm.loads.of_worker(hash("w0")), vm.loads.total()), (3, 4));
    let report = vm.next_report(Timestamp(0)).unwrap();
    let told: Vec<(String, Option<Rank>, u32)> =
        report.in_flight.iter().map(|f| (f.target.worker.to_string(), f.target.rank, f.count)).collect();
    let w0 = || "w0".to_owned();
    let mut expected = vec![(w0(), None, 1), (w0(), Some(Rank(2)), 2), ("w1".to_owned(), None, 1)];
    expected.sort();
    let mut sorted = told;
    sorted.sort();
    assert_eq!(sorted, expected);
    for _ in 0..5 {
        vm.loads.remove(hash("w0"), Some(Rank(2)));
        vm.loads.remove(hash("nobody"), None);
    }
    assert_eq!(vm.loads.of_worker(hash("w0")), 1);
    topology.workers.remove(0);
    let without_w0 = Directory::new(&topology);
    assert_eq!(vm.loads.absolute(Some(&without_w0)).len(), 1, "a removed worker is not reported");
    assert_eq!(vm.loads.absolute(None), []);
}

#[test]
fn the_load_of_a_worker_is_the_fleets_with_our_own_share_as_it_is_now() {
    let mut vm = Vm::new("envoy-1", Epoch(7), 1);
    let mut directory = Directory::new(&small_fleet());
    let hash = directory.workers[0].hash;
    vm.loads.add(hash, None);
    assert_eq!(vm.load(Timestamp(0), &directory.workers[0]), 1, "counted at the choice, heard or not");
    vm.directory = Some(directory.clone());
    assert!(vm.next_report(Timestamp(0)).is_some());
    directory.workers[0].fleet_in_flight = 5;
    assert_eq!(vm.load(Timestamp(0), &directory.workers[0]), 5, "ours is among the five");
    vm.loads.add(hash, Some(Rank(1)));
    assert_eq!(vm.load(Timestamp(0), &directory.workers[0]), 6);
    vm.loads.remove(hash, None);
    vm.loads.remove(hash, Some(Rank(1)));
    assert_eq!(vm.load(Timestamp(0), &directory.workers[0]), 4);
    directory.workers[0].fleet_in_flight = 0;
    assert_eq!(vm.load(Timestamp(0), &directory.workers[0]), 0, "never below zero");
}

/// Two turns of one session may own two holds: a hold whose owner is never told of stays for ever.
#[test]
fn each_answered_turn_is_told() {
    let mut reports = quiet();
    let committed = |request, seq| Entry::Committed {
        session: SessionRef { id: SessionId(5), rank_hash: RankHash(0) },
        pool: pool_name("chat"),
        request: RequestId(request),
        hold: None,
        target: target("w0", None),
        version: Version { seq, writer: 0 },
    };
    // The later answer belongs to the older hold.
    let entries = [committed(1, 9), committed(2, 4)];
    entries.iter().for_each(|entry| reports.push(entry.clone()));
    assert_eq!(reports.about(SessionId(5)), entries);
    assert_eq!(next(&mut reports, 100).unwrap().entries, entries);
}
