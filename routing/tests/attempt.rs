//! The upstream role: each attempt carries the rank of the host really dialled, or none.

mod common;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use common::{endpoint, id, small_fleet, worker};
use routing::attempt::{Attempt, Start};
use routing::contract::{EndpointInfo, RankNumbering};
use routing::directory::{Directory, WireRank};
use routing::flow::Counter;
use routing::hash::{rank_hash, worker_hash};
use routing::id::{Epoch, Rank};
use routing::vm::{Plan, PlanRef, Vm};

fn vm() -> Vm {
    let mut vm = Vm::new("envoy-1", Epoch(1), 1);
    vm.directory = Some(Directory::new(&small_fleet()));
    vm
}

/// A plan for `session-1` on a slot; its hashed ranks are 5 on ranks 4–7 and 1 on ranks 0–3.
fn plan(worker: &str, rank: Option<u32>, pending: bool) -> Plan {
    Plan {
        rank_hash: Some(rank_hash(b"session-1")),
        worker: worker_hash(&id(worker)),
        rank: rank.map(Rank),
        pending,
        attempts: 0,
        served: None,
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
    let at = vm.plans.insert(plan("w0", Some(2), true)).unwrap();
    let mut begin = |address| rank(Attempt::default().begin(&mut vm, Some(&note(at)), address));
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
    let at = vm.plans.insert(plan("w1", Some(6), false)).unwrap();
    let mut begin = |address| rank(Attempt::default().begin(&mut vm, Some(&note(at)), address));
    assert_eq!(begin("10.0.0.4:80").as_deref(), Some("2"));
    assert_eq!(begin("10.0.0.2:80"), None, "the other endpoint of the worker does not serve rank 6");
}

#[test]
fn without_a_session_no_attempt_carries_a_rank() {
    let mut vm = vm();
    let at = vm.plans.insert(Plan { rank_hash: None, ..plan("w0", None, false) }).unwrap();
    for address in ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"] {
        assert_eq!(rank(Attempt::default().begin(&mut vm, Some(&note(at)), address)), None);
    }
}

#[test]
fn without_a_note_nothing_is_counted() {
    let mut vm = vm();
    let mut attempt = Attempt::default();
    assert_eq!(attempt.begin(&mut vm, None, "10.0.0.1:80"), Start { rank: None, count: None });
    assert!(!attempt.wants_answer(&vm));
    attempt.answered(&mut vm, 200);
}

#[test]
fn a_plan_that_is_missing_is_counted_and_sends_no_rank() {
    let mut vm = vm();
    for text in ["", "-;s=-;w=w0;r=-;why=pinned", "0.1", "7.7;x", "a.b", "1", "99999999999.1"] {
        let start = Attempt::default().begin(&mut vm, Some(text), "10.0.0.1:80");
        assert_eq!(start, Start { rank: None, count: Some(Counter::PlanMissing) }, "{text:?}");
    }
    vm.directory = None;
    let start = Attempt::default().begin(&mut vm, Some("0.1"), "10.0.0.1:80");
    assert_eq!(start.rank, None, "nor without a fleet");
}

#[test]
fn a_late_attempt_never_touches_a_successors_plan() {
    let mut vm = vm();
    let old = vm.plans.insert(plan("w0", Some(2), true)).unwrap();
    let mut attempt = Attempt::default();
    attempt.begin(&mut vm, Some(&note(old)), "10.0.0.1:80");
    assert!(attempt.wants_answer(&vm));
    assert!(vm.plans.remove(old).is_some());
    let new = vm.plans.insert(plan("w1", Some(5), true)).unwrap();
    assert_ne!(old, new, "the place is reused, the name is not");
    let late = Attempt::default().begin(&mut vm, Some(&note(old)), "10.0.0.1:80");
    assert_eq!(late, Start { rank: None, count: Some(Counter::PlanMissing) });
    assert!(!attempt.wants_answer(&vm));
    attempt.answered(&mut vm, 200);
    assert_eq!(vm.plans.get(new), Some(&plan("w1", Some(5), true)));
    assert!(vm.plans.remove(old).is_none());
    assert_eq!(vm.plans.len(), 1);
}

#[test]
fn the_last_host_that_answered_is_the_one_that_served() {
    let mut vm = vm();
    let at = vm.plans.insert(plan("w0", Some(2), true)).unwrap();
    let served = |vm: &Vm| {
        vm.plans.get(at).and_then(|p| p.served.clone()).map(|s| (s.worker.to_string(), s.rank, s.status))
    };
    let (mut first, mut second) = (Attempt::default(), Attempt::default());
    first.begin(&mut vm, Some(&note(at)), "10.0.0.1:80");
    first.answered(&mut vm, 503);
    assert_eq!(served(&vm), Some(("w0".to_owned(), Some(Rank(2)), 503)));
    second.begin(&mut vm, Some(&note(at)), "10.0.0.2:80");
    second.answered(&mut vm, 200);
    assert_eq!(served(&vm), Some(("w1".to_owned(), Some(Rank(5)), 200)));
}

#[test]
fn only_a_pending_turn_wants_its_answer() {
    let mut vm = vm();
    for pending in [true, false] {
        let at = vm.plans.insert(plan("w0", Some(2), pending)).unwrap();
        let mut attempt = Attempt::default();
        attempt.begin(&mut vm, Some(&note(at)), "10.0.0.1:80");
        assert_eq!(attempt.wants_answer(&vm), pending);
    }
}

#[test]
fn plans_come_and_go_without_growing() {
    let mut vm = vm();
    for n in 0..1000u32 {
        let at = vm.plans.insert(plan("w0", Some(n), true)).unwrap();
        assert_eq!(PlanRef::parse(&at.to_text()), Some(at));
        assert_eq!(vm.plans.remove(at).and_then(|p| p.rank), Some(Rank(n)));
        assert!(vm.plans.remove(at).is_none(), "twice is once");
    }
    assert!(vm.plans.is_empty());
    let last = vm.plans.insert(plan("w0", None, true)).unwrap();
    assert!(last.to_text().starts_with("0."), "the one place is reused: {}", last.to_text());
}
