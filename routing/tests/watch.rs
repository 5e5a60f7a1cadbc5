//! The watch: arithmetic of positions, lost moves, moves against older answers, the lease of the watcher.

mod common;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use common::{id, small_fleet, target};
use routing::contract::{Fleet, Move, SessionRef, Target, Topology, WatchReply, WorkerState, WorkerStatus};
use routing::flow::PageChange;
use routing::hash::worker_hash;
use routing::id::{Cursor, Epoch, Rank, RankHash, SessionId, Version};
use routing::page::{self, Certainty, Record};
use routing::time::Timestamp;
use routing::watch::{Applied, LEASE, POLL_TIMEOUT, POLL_WAIT, Position, StoredFleet, claim, gauge_parts};

const NOW: Timestamp = Timestamp(50_000);

fn reply(epoch: u64, cursor: u64) -> WatchReply {
    WatchReply {
        epoch: Epoch(epoch),
        cursor: Cursor(cursor),
        salt: 99,
        gap: false,
        topology: None,
        fleet: None,
        moves: Vec::new(),
        upload: false,
    }
}

fn fleet(version: u64) -> Fleet {
    let status = WorkerStatus { in_flight: 3, ..WorkerStatus::idle(id("w0"), WorkerState::Ready) };
    Fleet { version, workers: vec![status] }
}

fn moved(seq: u64, to: Option<Target>) -> Move {
    let session = SessionRef { id: SessionId(1), rank_hash: RankHash(2) };
    Move { session, version: Version { seq, writer: 0 }, target: to }
}

fn at(epoch: u64, cursor: u64) -> Position {
    Position { epoch: Epoch(epoch), cursor, ..Position::default() }
}

fn apply(position: &Position, reply: WatchReply) -> Applied {
    position.apply(reply, &StoredFleet::default(), NOW)
}

#[test]
fn the_path_carries_the_position() {
    let position = Position { topology: 3, fleet: 4, ..at(7, 12) };
    assert_eq!(
        position.path("envoy 1/ä"),
        "/v1/watch?node=envoy%201%2F%C3%A4&epoch=7&after=12&topology=3&fleet=4&wait_ms=4000"
    );
    assert_eq!(
        Position::default().path(""),
        "/v1/watch?node=&epoch=0&after=0&topology=0&fleet=0&wait_ms=4000"
    );
    assert!(POLL_TIMEOUT > POLL_WAIT);
}

#[test]
fn an_empty_answer_moves_the_cursor_and_nothing_else() {
    let before = Position { topology: 3, fleet: 4, topologies: 1, fleets: 2, ..at(7, 12) };
    let applied = apply(&before, reply(7, 15));
    assert_eq!(applied.position, Position { cursor: 15, ..before.clone() });
    assert_eq!((applied.topology, applied.fleet, applied.pages), (None, None, Vec::new()));
    assert_eq!(applied.position.gauge(), before.gauge(), "no VM reads anything again");
}

#[test]
fn the_gauge_counts_topologies_and_fleets_apart() {
    let first =
        apply(&at(0, 0), WatchReply { topology: Some(small_fleet()), fleet: Some(fleet(5)), ..reply(7, 1) });
    assert_eq!(gauge_parts(first.position.gauge()), (1, 1));
    assert_eq!((first.position.topology, first.position.fleet), (1, 5));
    assert_eq!(first.topology, Some(small_fleet()));
    let second = apply(&first.position, WatchReply { fleet: Some(fleet(6)), ..reply(7, 2) });
    assert_eq!(gauge_parts(second.position.gauge()), (1, 2));
    assert_eq!((second.position.topology, second.position.fleet), (1, 6));
    let full = Position { topologies: u32::MAX, fleets: u32::MAX, ..at(7, 1) };
    assert_eq!(gauge_parts(full.gauge()), (0xffff_ffff, 0xffff_ffff));
    let wrapped = apply(&full, WatchReply { topology: Some(small_fleet()), ..reply(7, 2) });
    assert_eq!(gauge_parts(wrapped.position.gauge()), (0, 0), "a change, whatever its value");
    assert_ne!(wrapped.position.gauge(), full.gauge());
}

#[test]
fn a_new_topology_keeps_the_known_states() {
    let known = StoredFleet { fleet: fleet(5), generation: 0, salt: 1 };
    let answer = WatchReply { topology: Some(small_fleet()), ..reply(7, 2) };
    let applied = at(7, 1).apply(answer, &known, NOW);
    assert_eq!(applied.fleet, Some(StoredFleet { fleet: fleet(5), generation: 0, salt: 99 }));
    assert_eq!(applied.position.fleet, 5);
}

#[test]
fn lost_moves_bump_the_generation() {
    for (position, answer, lost, why) in [
        (at(0, 0), reply(7, 1), 0, "the first answer ever"),
        (at(0, 0), WatchReply { gap: true, ..reply(7, 1) }, 0, "nothing is cached before it"),
        (at(7, 1), reply(7, 2), 0, "the same life"),
        (at(7, 1), WatchReply { gap: true, ..reply(7, 900) }, 1, "a gap"),
        (at(7, 900), reply(8, 1), 1, "another life of the service"),
        (at(7, 900), WatchReply { gap: true, ..reply(8, 1) }, 1, "both at once count once"),
    ] {
        let applied = apply(&Position { generation: 65_535, ..position }, answer);
        let expected = if lost == 1 { 0 } else { 65_535 };
        assert_eq!(applied.position.generation, expected, "{why}: it wraps");
        assert_eq!(applied.fleet.is_some(), lost == 1, "{why}: VMs hear of it with the fleet");
        if let Some(stored) = applied.fleet {
            assert_eq!(stored.generation, expected);
        }
    }
}

#[test]
fn moves_become_records_and_releases_tombstones() {
    let moves = vec![moved(4, Some(target("w1", Some(5)))), moved(5, None)];
    let position = Position { generation: 3, ..at(7, 1) };
    let applied = apply(&position, WatchReply { moves, ..reply(7, 3) });
    let [PageChange::Put(to), PageChange::Put(gone)] = &applied.pages[..] else { panic!("{applied:?}") };
    assert_eq!(
        *to,
        Record {
            id: SessionId(1),
            rank_hash: RankHash(2),
            version: Version { seq: 4, writer: 0 },
            worker_hash: worker_hash(&id("w1")),
            rank: Some(Rank(5)),
            touched_s: 50,
            generation: 3,
            certainty: Certainty::Bound,
        }
    );
    assert_eq!((gone.certainty, gone.version.seq, gone.rank), (Certainty::Gone, 5, None));
}

#[test]
fn an_older_route_answer_changes_nothing_after_a_move() {
    for to in [Some(target("w1", Some(5))), None] {
        let applied = apply(&at(7, 1), WatchReply { moves: vec![moved(4, to)], ..reply(7, 2) });
        let page = applied.pages[0].apply(&page::empty(), 2048).unwrap();
        let PageChange::Put(moved) = applied.pages[0] else { panic!("{applied:?}") };
        for seq in 1..=4 {
            for certainty in [Certainty::Bound, Certainty::Held] {
                let late = Record { version: Version { seq, writer: 0 }, worker_hash: 1, certainty, ..moved };
                let after = PageChange::Put(late).apply(&page, 2048);
                let same_bound =
                    seq == 4 && certainty == Certainty::Bound && moved.certainty == Certainty::Bound;
                assert!(after.is_none() || same_bound, "{late:?}");
            }
        }
        let newer = Record { version: Version { seq: 5, writer: 0 }, ..moved };
        assert!(PageChange::Put(newer).apply(&page, 2048).is_some());
    }
}

#[test]
fn moves_of_a_new_life_carry_the_new_generation() {
    let answer = WatchReply { moves: vec![moved(4, None)], ..reply(8, 1) };
    let applied = apply(&at(7, 9), answer);
    let PageChange::Put(record) = applied.pages[0] else { panic!("{applied:?}") };
    assert_eq!((record.generation, applied.position.generation), (1, 1));
}

#[test]
fn a_new_life_without_workers_does_not_empty_the_fleet() {
    let known = fleet(5);
    let nobody = Topology { version: 9, ..Topology::default() };
    let empty = Fleet { version: 9, workers: Vec::new() };
    let answer =
        |epoch| WatchReply { topology: Some(nobody.clone()), fleet: Some(empty.clone()), ..reply(epoch, 1) };
    let stored = |fleet: Fleet| StoredFleet { fleet, generation: 0, salt: 1 };
    let new_life = at(7, 3).apply(answer(8), &stored(known.clone()), NOW);
    assert_eq!(new_life.topology, None);
    assert_eq!(new_life.fleet.map(|stored| stored.fleet), Some(known.clone()), "states stay, too");
    assert_eq!(new_life.position.topology, 9, "not asked for again until it changes");
    let same_life = at(7, 3).apply(answer(7), &stored(known), NOW);
    assert_eq!(same_life.topology, Some(nobody.clone()), "all workers were removed");
    let first = at(0, 0).apply(answer(8), &stored(Fleet::default()), NOW);
    assert_eq!(first.topology, Some(nobody), "nothing was known before");
}

#[test]
fn a_stored_position_reads_back() {
    let position =
        Position { topology: 3, fleet: 4, generation: 5, topologies: 6, fleets: 7, ..at(u64::MAX, 2) };
    let text = serde_json::to_string(&position).unwrap();
    assert_eq!(serde_json::from_str::<Position>(&text).unwrap(), position);
}

/// A lease of `holder` that ends at `until`.
fn lease(holder: u64, until: u64) -> Vec<u8> {
    [holder.to_le_bytes(), until.to_le_bytes()].concat()
}

#[test]
fn one_vm_holds_the_lease() {
    let me = Epoch(1);
    let claimed = |current: Option<&[u8]>, now: u64| claim(current, me, Timestamp(now));
    let mine = |now: u64| Some(lease(1, now + LEASE.0));
    assert_eq!(claimed(None, 1000), mine(1000), "nobody holds it");
    let theirs = lease(2, 1000 + LEASE.0);
    assert_eq!(claimed(Some(&theirs), 1000), None, "another holds it");
    assert_eq!(claimed(Some(&theirs), 999 + LEASE.0), None);
    assert_eq!(claimed(Some(&theirs), 1000 + LEASE.0), mine(1000 + LEASE.0), "it ended");
    assert_eq!(claimed(Some(&lease(1, 4000)), 2000), mine(2000), "renewed");
    assert_eq!(claimed(Some(&lease(1, 4000)), 9000), mine(9000), "mine, though late");
    assert_eq!(claimed(Some(&lease(2, 900_000)), 1000), mine(1000), "the clock went back");
    assert_eq!(claimed(Some(&lease(2, u64::MAX)), 1000), mine(1000));
    for garbage in [&b""[..], b"x", &[0; 15]] {
        assert_eq!(claimed(Some(garbage), 1000), mine(1000), "{garbage:?}");
    }
}
