//! The upstream role: each attempt carries the rank of the host really dialled, or none.

mod common;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use common::{endpoint, id, small_fleet, worker};
use routing::attempt::{Attempt, Part, RANK_BODY_BYTES_MAX, Start, WireRank};
use routing::contract::{EndpointInfo, Engine, Entry, RankIn, RankNumbering, SlotFailure, WorkerInfo};
use routing::directory::Directory;
use routing::engine::Surface;
use routing::flow::Counter;
use routing::hash::{rank_hash, worker_hash};
use routing::id::{Epoch, Rank};
use routing::penalty::{PENALTY_MAX, PER_FAILURE, Penalty};
use routing::time::{Millis, Timestamp};
use routing::vm::{Dialled, Plan, PlanRef, Troubles, UNREACHABLE_FOR, Verdict, Vm};

const NOW: Timestamp = Timestamp(1_000_000);

fn vm() -> Vm {
    let mut vm = Vm::new("envoy-1", Epoch(1), 1);
    vm.directory = Some(Directory::new(&small_fleet()));
    vm
}

/// A plan for `session-1` on a slot; its hashed ranks are 5 on ranks 4–7 and 1 on ranks 0–3.
fn plan(worker: &str, rank: Option<u32>) -> Plan {
    Plan {
        rank_hash: Some(rank_hash(b"session-1")),
        worker: worker_hash(&id(worker)),
        rank: rank.map(Rank),
        surface: Surface::Chat,
        body_bytes: None,
        exact: false,
        attempts: 0,
        last: None,
        counted: (worker_hash(&id(worker)), rank.map(Rank)),
    }
}

fn note(at: PlanRef) -> String {
    format!("{};s=1a2b3c4d;w=w0;r=2;why=pinned", at.to_text())
}

fn rank(start: Start) -> Option<String> {
    assert_eq!(start.count, None);
    start.rank.map(|WireRank { header, value }| {
        assert_eq!(header, "x-data-parallel-rank");
        value
    })
}

#[test]
fn each_attempt_carries_the_rank_of_its_own_host() {
    let mut vm = vm();
    let at = vm.plans.insert(plan("w0", Some(2))).unwrap();
    let mut begin = |address| rank(Attempt::default().begin(&mut vm, NOW, Some(&note(at)), address));
    assert_eq!(begin("10.0.0.1:80").as_deref(), Some("2"), "the chosen slot");
    assert_eq!(begin("10.0.0.2:80").as_deref(), Some("5"), "ranks 4–7: the session's own hash there");
    assert_eq!(begin("10.0.0.3:80"), None, "a single rank");
    assert_eq!(begin("10.0.0.1:80").as_deref(), Some("2"), "back again");
    assert_eq!(begin("10.9.9.9:80"), None, "an unknown host");
    assert_eq!(vm.plans.get(at).map(|p| p.attempts), Some(5));
}

#[test]
fn a_local_endpoint_gets_a_local_rank() {
    let mut topology = small_fleet();
    let local = |address: &str, start| EndpointInfo {
        rank_numbering: RankNumbering::Local,
        ..endpoint(address, start, 4)
    };
    topology.workers[1] = worker("w1", &[local("10.0.0.2:80", 0), local("10.0.0.4:80", 4)]);
    let mut vm = vm();
    vm.directory = Some(Directory::new(&topology));
    let at = vm.plans.insert(plan("w1", Some(6))).unwrap();
    let mut begin = |address| rank(Attempt::default().begin(&mut vm, NOW, Some(&note(at)), address));
    assert_eq!(begin("10.0.0.4:80").as_deref(), Some("2"));
    assert_eq!(begin("10.0.0.2:80"), None, "the other endpoint of the worker does not serve rank 6");
}

#[test]
fn without_a_session_no_attempt_carries_a_rank() {
    let mut vm = vm();
    let at = vm.plans.insert(Plan { rank_hash: None, ..plan("w0", None) }).unwrap();
    for address in ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"] {
        assert_eq!(rank(Attempt::default().begin(&mut vm, NOW, Some(&note(at)), address)), None);
    }
}

#[test]
fn without_a_note_nothing_is_counted() {
    let mut vm = vm();
    let mut attempt = Attempt::default();
    assert_eq!(attempt.begin(&mut vm, NOW, None, "10.0.0.1:80"), Start::default());
    attempt.answered(&mut vm, NOW, 200, None);
}

#[test]
fn a_plan_that_is_missing_is_counted_and_sends_no_rank() {
    let mut vm = vm();
    for text in ["", "-;s=-;w=w0;r=-;why=pinned", "0.1", "7.7;x", "a.b", "1", "99999999999.1"] {
        let start = Attempt::default().begin(&mut vm, NOW, Some(text), "10.0.0.1:80");
        assert_eq!(start, Start { count: Some(Counter::PlanMissing), ..Start::default() }, "{text:?}");
    }
    vm.directory = None;
    let start = Attempt::default().begin(&mut vm, NOW, Some("0.1"), "10.0.0.1:80");
    assert_eq!(start.rank, None, "nor without a fleet");
}

#[test]
fn a_late_attempt_never_touches_a_successors_plan() {
    let mut vm = vm();
    let old = vm.plans.insert(plan("w0", Some(2))).unwrap();
    let mut attempt = Attempt::default();
    attempt.begin(&mut vm, NOW, Some(&note(old)), "10.0.0.1:80");
    assert!(vm.plans.remove(old).is_some());
    let new = vm.plans.insert(plan("w1", Some(5))).unwrap();
    assert_ne!(old, new, "the place is reused, the name is not");
    let late = Attempt::default().begin(&mut vm, NOW, Some(&note(old)), "10.0.0.1:80");
    assert_eq!(late, Start { count: Some(Counter::PlanMissing), ..Start::default() });
    attempt.answered(&mut vm, NOW, 200, None);
    assert_eq!(vm.plans.get(new), Some(&plan("w1", Some(5))));
    assert!(vm.plans.remove(old).is_none());
    assert_eq!(vm.plans.len(), 1);
}

/// What the next report says of slots.
fn findings(vm: &mut Vm, at: u64) -> Vec<String> {
    vm.reports.lost();
    let report = vm.next_report(Timestamp(at)).unwrap();
    vm.reports.acknowledged();
    let told = |entry: &Entry| match entry {
        Entry::SlotFailed { target, failure, count } => {
            format!("{}/{} {failure:?} x{count}", target.worker, target.rank.map_or(-1, |r| i64::from(r.0)))
        }
        Entry::SlotAnswered { target } => format!("{} answered", target.worker),
        other => panic!("unexpected {other:?}"),
    };
    report.entries.iter().map(told).collect()
}

#[test]
fn the_last_host_is_the_one_that_served_and_the_load_goes_along() {
    let mut vm = vm();
    let at = vm.plans.insert(plan("w0", Some(2))).unwrap();
    let (w0, w1) = (worker_hash(&id("w0")), worker_hash(&id("w1")));
    vm.loads.add(w0, Some(Rank(2)));
    let (mut first, mut second) = (Attempt::default(), Attempt::default());
    first.begin(&mut vm, NOW, Some(&note(at)), "10.0.0.1:80");
    first.answered(&mut vm, NOW, 503, None);
    assert_eq!((vm.loads.of_worker(w0), vm.loads.of_worker(w1)), (1, 0));
    second.begin(&mut vm, NOW, Some(&note(at)), "10.0.0.2:80");
    second.answered(&mut vm, NOW, 200, None);
    let served = Dialled { worker: w1, rank: Some(Rank(5)), answered: true };
    assert_eq!(vm.plans.get(at).and_then(|p| p.last), Some(served));
    assert_eq!((vm.loads.of_worker(w0), vm.loads.of_worker(w1)), (0, 1), "given back on a retry elsewhere");
    let counted = vm.plans.get(at).map(|p| p.counted);
    assert_eq!(counted, Some((w1, Some(Rank(5)))), "where the end of the request takes it away");
    assert_eq!(findings(&mut vm, 1000), ["w0/2 Connection x1"]);
}

#[test]
fn an_attempt_without_an_answer_failed_when_the_next_one_begins() {
    let mut vm = vm();
    let at = vm.plans.insert(plan("w0", Some(2))).unwrap();
    let begin = |vm: &mut Vm, address| Attempt::default().begin(vm, NOW, Some(&note(at)), address);
    begin(&mut vm, "10.0.0.1:80");
    assert!(vm.troubles.is_empty(), "it may still answer");
    begin(&mut vm, "10.0.0.2:80");
    let w0 = worker_hash(&id("w0"));
    assert!(vm.troubles.avoids(NOW, w0, Some(Rank(0))), "any rank of a worker that refuses connections");
    assert!(!vm.troubles.avoids(NOW + UNREACHABLE_FOR, w0, Some(Rank(0))), "for a while");
    assert_eq!(vm.troubles.penalty(NOW, w0), PER_FAILURE);
    assert_eq!(findings(&mut vm, NOW.0), ["w0/2 Connection x1"]);
    // A host that nobody declared is nobody's failure, and the attempt after it is not mistaken for it.
    begin(&mut vm, "10.9.9.9:80");
    begin(&mut vm, "10.0.0.3:80");
    assert_eq!(findings(&mut vm, NOW.0 + 1), ["w1/5 Connection x1"]);
}

#[test]
fn what_an_answer_says_of_its_slot() {
    let cases: [(u16, Option<&str>, &[&str], bool); 9] = [
        (200, None, &[], false),
        (400, None, &[], false),
        (404, Some("1"), &[], false),
        (429, None, &[], true),
        (429, Some("3"), &[], true),
        (500, None, &["w0/2 Status5xx x1"], false),
        (502, None, &["w0/2 Status5xx x1"], false),
        (503, None, &["w0/2 Connection x1"], true),
        (503, Some("2"), &[], true),
    ];
    for (status, retry_after, told, avoided) in cases {
        let mut vm = vm();
        let at = vm.plans.insert(plan("w0", Some(2))).unwrap();
        let mut attempt = Attempt::default();
        attempt.begin(&mut vm, NOW, Some(&note(at)), "10.0.0.1:80");
        attempt.answered(&mut vm, NOW, status, retry_after.map(str::as_bytes));
        let w0 = worker_hash(&id("w0"));
        assert_eq!(vm.troubles.avoids(NOW, w0, Some(Rank(2))), avoided, "{status} {retry_after:?}");
        let whole_worker = status == 503 && retry_after.is_none();
        let other_rank = vm.troubles.avoids(NOW, w0, Some(Rank(3)));
        assert_eq!(other_rank, whole_worker, "one busy rank does not shut its worker: {status}");
        assert_eq!(findings(&mut vm, NOW.0), told, "{status} {retry_after:?}");
    }
}

#[test]
fn a_slot_is_busy_as_long_as_it_says_within_bounds() {
    for (retry_after, seconds) in
        [("0", 1), ("1", 1), ("7", 7), ("3600", 10), ("Wed, 21 Oct 2026 07:28:00 GMT", 1), ("-5", 1), ("", 1)]
    {
        let mut troubles = Troubles::default();
        let verdict = Verdict::of_status(429, Some(retry_after.as_bytes()));
        troubles.note(NOW, 7, None, verdict);
        let last = Timestamp(NOW.0 + seconds * 1000 - 1);
        assert!(troubles.avoids(last, 7, None), "{retry_after:?}");
        assert!(!troubles.avoids(last + Millis(1), 7, None), "{retry_after:?}");
        assert!(
            !troubles.avoids(Timestamp(NOW.0 - 60_000), 7, None),
            "a clock that went back holds nobody off for long"
        );
    }
}

#[test]
fn trouble_is_forgotten_when_it_is_over_or_proved_wrong() {
    let mut troubles = Troubles::default();
    for n in 0..1000 {
        troubles.note(NOW, n, None, Verdict::Failed(SlotFailure::Connection));
    }
    troubles.sweep(NOW);
    assert_eq!(troubles.len(), 1000);
    assert!(troubles.note(NOW, 5, None, Verdict::Good) && !troubles.avoids(NOW, 5, None));
    assert_eq!(troubles.penalty(NOW, 5), PER_FAILURE / 2, "an answer halves it");
    troubles.sweep(NOW + Millis(60_000));
    assert!(troubles.is_empty());
    assert!(!troubles.note(NOW, 5, None, Verdict::Good), "nobody is in trouble");
}

#[test]
fn penalties_halve_every_five_seconds_and_end() {
    let mut penalty = Penalty::default();
    penalty.add(NOW, 4);
    let after = |ms| penalty.requests(NOW + Millis(ms));
    assert_eq!([0, 2500, 5000, 10_000, 15_000, 20_000].map(after), [16, 12, 8, 4, 2, 1]);
    assert_eq!([35_000, 1 << 40].map(after), [0, 0]);
    let all: Vec<u32> = (0..400).map(|n| after(n * 100)).collect();
    assert!(all.is_sorted_by(|a, b| a >= b), "never up again: {all:?}");
    penalty.add(NOW, u32::MAX);
    assert_eq!(penalty.requests(NOW), PENALTY_MAX);
    assert_eq!(penalty.requests(Timestamp(0)), PENALTY_MAX, "a clock that went back");
}

#[test]
fn an_exact_target_is_refused_on_any_other_host() {
    let mut topology = small_fleet();
    topology.workers[1] = worker("w1", &[endpoint("10.0.0.2:80", 0, 4), endpoint("10.0.0.4:80", 4, 4)]);
    let mut vm = vm();
    vm.directory = Some(Directory::new(&topology));
    let at = vm.plans.insert(Plan { exact: true, ..plan("w1", Some(6)) }).unwrap();
    let mut begin = |address| Attempt::default().begin(&mut vm, NOW, Some(&note(at)), address);
    assert_eq!(rank(begin("10.0.0.4:80")).as_deref(), Some("6"));
    for (stranger, why) in [
        ("10.0.0.1:80", "another worker"),
        ("10.0.0.2:80", "the same worker, other ranks"),
        ("10.9.9.9:80", "nobody we know"),
    ] {
        let start = begin(stranger);
        assert_eq!(start.refuse.map(|reply| reply.status), Some(503), "{why}");
        assert_eq!((start.rank, start.count), (None, Some(Counter::ExactRefused)), "{why}");
    }
}

#[test]
fn plans_come_and_go_without_growing() {
    let mut vm = vm();
    for n in 0..1000u32 {
        let at = vm.plans.insert(plan("w0", Some(n))).unwrap();
        assert_eq!(PlanRef::parse(&at.to_text()), Some(at));
        assert_eq!(vm.plans.remove(at).and_then(|p| p.rank), Some(Rank(n)));
        assert!(vm.plans.remove(at).is_none(), "twice is once");
    }
    assert!(vm.plans.is_empty());
    let last = vm.plans.insert(plan("w0", None)).unwrap();
    assert!(last.to_text().starts_with("0."), "the one place is reused: {}", last.to_text());
}

/// `w1` is an SGLang of an age that reads the rank in the body.
fn with_old_sglang() -> Vm {
    let mut topology = small_fleet();
    let local = EndpointInfo { rank_numbering: RankNumbering::Local, ..endpoint("10.0.0.2:80", 4, 4) };
    topology.workers[1] = WorkerInfo {
        engine: Engine::Sglang,
        engine_version: Some("0.5.9".to_owned()),
        rank_in: RankIn::Body,
        ..worker("w1", &[local])
    };
    let mut vm = vm();
    vm.directory = Some(Directory::new(&topology));
    vm
}

#[test]
fn a_rank_in_the_body_is_written_anew_for_each_attempt() {
    let mut vm = with_old_sglang();
    let at = vm.plans.insert(plan("w1", Some(6))).unwrap();
    let original = br#"{"model":"m","data_parallel_rank":0}"#;
    let mut attempt = Attempt::default();
    let begin =
        |vm: &mut Vm, attempt: &mut Attempt, address| attempt.begin(vm, NOW, Some(&note(at)), address);
    let start = begin(&mut vm, &mut attempt, "10.0.0.2:80");
    assert_eq!(start, Start { wants_body: true, ..Start::default() }, "no header, the body instead");
    assert_eq!(attempt.part(&mut vm, 10, false), Part::Wait);
    assert_eq!(attempt.part(&mut vm, original.len(), true), Part::Read);
    let new = attempt.body(&mut vm, original).unwrap();
    assert_eq!(std::str::from_utf8(&new).unwrap(), r#"{"data_parallel_rank":2,"model":"m"}"#, "as it counts");
    assert_eq!(attempt.part(&mut vm, new.len(), true), Part::Go(None), "once");

    // A vLLM next: the client's own body and its length, and a header.
    let start = begin(&mut vm, &mut Attempt::default(), "10.0.0.1:80");
    assert_eq!(start.content_length, Some(original.len() as u64));
    assert!(!start.wants_body && start.rank.is_some());
    // A host nobody declared gets the client's length as well.
    let start = begin(&mut vm, &mut Attempt::default(), "10.9.9.9:80");
    assert_eq!(start, Start { content_length: Some(original.len() as u64), ..Start::default() });
    // And back.
    let mut third = Attempt::default();
    assert!(begin(&mut vm, &mut third, "10.0.0.2:80").wants_body);
    assert_eq!(third.body(&mut vm, original), Ok(new));
}

#[test]
fn a_body_that_cannot_be_rewritten_goes_without_a_rank_and_counts_without_one() {
    let w1 = worker_hash(&id("w1"));
    let full = RANK_BODY_BYTES_MAX;
    for (parts, whole, counter) in [
        (
            vec![(full, false, Part::Wait), (full + 1, true, Part::Go(Some(Counter::RankBodyTooLong)))],
            None,
            None,
        ),
        (vec![(full, true, Part::Read)], Some(&b"{\"a\":"[..]), Some(Counter::RankBodyMalformed)),
        (vec![(0, true, Part::Read)], Some(&b""[..]), Some(Counter::RankBodyMalformed)),
    ] {
        let mut vm = with_old_sglang();
        let at = vm.plans.insert(plan("w1", Some(6))).unwrap();
        vm.loads.add(w1, Some(Rank(6)));
        let mut attempt = Attempt::default();
        assert!(attempt.begin(&mut vm, NOW, Some(&note(at)), "10.0.0.2:80").wants_body);
        assert_eq!(vm.plans.get(at).map(|plan| plan.counted), Some((w1, Some(Rank(6)))));
        for (held, end, part) in parts {
            assert_eq!(attempt.part(&mut vm, held, end), part);
        }
        if let (Some(whole), Some(counter)) = (whole, counter) {
            assert_eq!(attempt.body(&mut vm, whole), Err(counter));
        }
        assert_eq!(vm.plans.get(at).map(|plan| plan.counted), Some((w1, None)), "the engine chooses");
        assert_eq!(vm.plans.get(at).and_then(|plan| plan.body_bytes), None);
        let again = Attempt::default().begin(&mut vm, NOW, Some(&note(at)), "10.0.0.1:80");
        assert_eq!(again.content_length, None, "nothing to take back");
    }
}

#[test]
fn where_no_rank_is_read_none_is_sent_and_none_is_counted() {
    let mut vm = vm();
    let w0 = worker_hash(&id("w0"));
    for (surface, sent) in [(Surface::Chat, Some(Rank(2))), (Surface::Other, None)] {
        let at = vm.plans.insert(Plan { surface, ..plan("w0", Some(2)) }).unwrap();
        let start = Attempt::default().begin(&mut vm, NOW, Some(&note(at)), "10.0.0.1:80");
        assert_eq!(start.rank.is_some(), sent.is_some(), "{surface:?}");
        let plan = vm.plans.get(at).unwrap();
        assert_eq!(plan.counted, (w0, sent), "{surface:?}");
        assert_eq!(
            plan.last.and_then(|last| last.rank),
            Some(Rank(2)),
            "its session is at home there all the same"
        );
    }
}
