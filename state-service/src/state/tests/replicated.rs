//! Bindings of other writers: every row of the table of outcomes, what waits for its slot, and two states that tell each other.

use super::world::{World, check, session, worker_id};
use crate::declare;
use crate::state::{Binding, Changes, Command, Limits, Outcome, Position, Reply};
use expect_test::expect;
use proptest::prelude::*;
use routing::contract::{SessionRef, Target};
use routing::id::{Rank, SessionId, Version};
use routing::time::Millis;

#[test]
fn every_row_of_the_table() {
    check(
        "worker w1 ranks=0..8; worker w2; apply a v=3/9 on=w1:5; apply a v=3/9 on=w1:5; apply a v=2/9 on=w2; apply a v=4/9 on=w2; moves;
         apply a v=5/9; moves; apply a v=4/9 on=w2; apply b v=9/9; moves;
         apply c v=3/9 on=w2 left=0s; apply c v=4611686018427387905/1 on=w2; apply d v=1/9 on=w2; apply d v=1/9 on=w1:2",
        &expect![[r#"
            worker w1 ranks=0..8 -> Created
            worker w2 -> Created
            apply a v=3/9 on=w1:5 -> [Inserted] Bound w1:5 v3/9
            apply a v=3/9 on=w1:5 -> [Refreshed] Bound w1:5 v3/9
            apply a v=2/9 on=w2 -> [IgnoredConflict] Bound w1:5 v3/9
            apply a v=4/9 on=w2 -> [ReplacedNewer] Bound w2 v4/9
            moves -> w1:5 v3/9, w2 v4/9
            apply a v=5/9 -> [ReplacedNewer] Released - v5/9
            moves -> released v5/9
            apply a v=4/9 on=w2 -> [IgnoredStale] Released - v5/9
            apply b v=9/9 -> [Inserted] Released - v9/9
            moves -> released v5/9, released v9/9
            apply c v=3/9 on=w2 left=0s -> [Rejected] none
            apply c v=4611686018427387905/1 on=w2 -> [Rejected] none
            apply d v=1/9 on=w2 -> [Inserted] Bound w2 v1/9
            apply d v=1/9 on=w1:2 -> [IgnoredConflict] Bound w2 v2
        "#]],
    );
}

#[test]
fn a_hold_gives_way_to_a_binding() {
    check(
        "worker w1; worker w2; route a r1; apply a v=9/9 on=w2; commit a r1; show a; moves;
         route b r2; apply b v=9/9 on=w1; commit b r2; show b",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            apply a v=9/9 on=w2 -> [Inserted] Bound w2 v9/9
            commit a r1 -> Bound w2 v9/9 [merge_ignored_conflict]
            show a -> Bound w2 v9/9
            moves -> w2 v9/9
            route b r2 -> held w1 v2 least_loaded
            apply b v=9/9 on=w1 -> [Inserted] Bound w1 v9/9
            commit b r2 -> Bound w1 v9/9 [merge_ignored_conflict]
            show b -> Bound w1 v9/9
        "#]],
    );
}

/// A late replica knows neither the worker nor its ranks: nobody is pulled off, and nothing newer is given.
#[test]
fn what_is_not_declared_yet_is_awaited() {
    check(
        "apply a v=3/9 on=w1:5; worker w1; route a r1; show a; apply a v=4/9 on=w1:6; worker w1 ranks=0..8; show a; route a r2; moves;
         count unparked; count applied_parked",
        &expect![[r#"
            apply a v=3/9 on=w1:5 -> [Parked] none
            worker w1 -> Created
            route a r1 -> unsure - v0 settling
            show a -> none
            apply a v=4/9 on=w1:6 -> [Parked] none
            worker w1 ranks=0..8 -> Replaced
            show a -> Bound w1:6 v4/9
            route a r2 -> bound w1:6 v4/9 bound
            moves -> nothing
            count unparked -> 1
            count applied_parked -> 2
        "#]],
    );
}

/// The rank is gone, as far as anybody may know: its session re-binds. Numbers tell which declaration is the newer one.
#[test]
fn a_rank_that_was_is_not_awaited() {
    check(
        "worker w1 ranks=0..4; number w1 8; apply a v=3/9 on=w1:5 gen=7; route a r1; apply b v=3/9 on=w1:5 gen=9; route b r2;
         number w1 9; show b; route b r3; apply c v=3/9 on=w1:5 gen=10; wait 61s; route c r4",
        &expect![[r#"
            worker w1 ranks=0..4 -> Created
            number w1 8 -> done
            apply a v=3/9 on=w1:5 gen=7 -> [Inserted] Bound w1:5 v3/9
            route a r1 -> held w1:3 v4 rebound
            apply b v=3/9 on=w1:5 gen=9 -> [Parked] none
            route b r2 -> unsure - v0 settling
            number w1 9 -> done
            show b -> Bound w1:5 v3/9
            route b r3 -> held w1:3 v5 rebound
            apply c v=3/9 on=w1:5 gen=10 -> [Parked] none
            wait 61s -> 2 sessions, 0 held, 0 vms
            route c r4 -> held w1:3 v6 least_loaded
        "#]],
    );
}

/// Read while its worker is not declared, a binding is told all the same: whoever reads does not come back to it.
#[test]
fn a_binding_is_told_though_its_worker_is_gone() {
    check(
        "worker w1 ranks=0..4; number w1 3; worker w2; route a r1; commit a r1; remove w1; changes 0; route b r2 seq=1; show a;
         route c r3; remove w2; commit c r3; changes 1; worker w2; changes 1",
        &expect![[r#"
            worker w1 ranks=0..4 -> Created
            number w1 3 -> done
            worker w2 -> Created
            route a r1 -> held w1:3 v1 least_loaded
            commit a r1 -> Bound w1:3 v1 [holds_committed merge_inserted]
            remove w1 -> done
            changes 0 -> a w1:3 v1, at 1
            route b r2 seq=1 -> held w2 v2 least_loaded
            show a -> Bound - v1
            route c r3 -> held w2 v3 least_loaded
            remove w2 -> done
            commit c r3 -> Bound - v3 [holds_committed merge_inserted commit_unknown_worker]
            changes 1 -> c w2 v3, at 2
            worker w2 -> Created
            changes 1 -> c w2 v3, at 2
        "#]],
    );
}

/// Its declaration is over, as its number says: it is not waited for, and its session is bound anew here as anywhere.
#[test]
fn a_worker_that_is_gone_is_not_awaited() {
    check(
        "worker w1; number w1 3; worker w2; remove w1; apply a v=3/9 on=w1 gen=3; route a r1; apply b v=3/9 on=w1 gen=4; route b r2;
         apply c v=3/9 on=w3 gen=4; apply d v=3/9 on=w3 gen=6; apply e v=3/9 on=w3; told 5; show c; route b r3; route d r4; route e r5;
         worker w3; number w3 6; show d; changes 0",
        &expect![[r#"
            worker w1 -> Created
            number w1 3 -> done
            worker w2 -> Created
            remove w1 -> done
            apply a v=3/9 on=w1 gen=3 -> [Inserted] Bound - v3/9
            route a r1 -> held w2 v4 rebound
            apply b v=3/9 on=w1 gen=4 -> [Parked] none
            route b r2 -> unsure - v0 settling
            apply c v=3/9 on=w3 gen=4 -> [Parked] none
            apply d v=3/9 on=w3 gen=6 -> [Parked] none
            apply e v=3/9 on=w3 -> [Parked] none
            told 5 -> done
            show c -> Bound - v3/9
            route b r3 -> held w2 v5 rebound
            route d r4 -> unsure - v0 settling
            route e r5 -> unsure - v0 settling
            worker w3 -> Created
            number w3 6 -> done
            show d -> Bound w3 v3/9
            changes 0 -> a w1 v3, b w1 v3, c w3 v3, e w3 v3, d w3 v3, at 5
        "#]],
    );
}

#[test]
fn what_is_newer_makes_what_waits_void() {
    check(
        "worker w1; apply a v=3/9 on=w2; route a r1; apply a v=4/9; route a r2; worker w2; show a",
        &expect![[r#"
            worker w1 -> Created
            apply a v=3/9 on=w2 -> [Parked] none
            route a r1 -> unsure - v0 settling
            apply a v=4/9 -> [Inserted] Released - v4/9
            route a r2 -> held w1 v5 least_loaded
            worker w2 -> Created
            show a -> Held { owners: 1 } w1 v5
        "#]],
    );
}

#[test]
fn changes_are_told_once_each_in_order_and_not_to_who_made_them() {
    check(
        "worker w1; worker w2; route a r1; commit a r1; apply b v=3/9 on=w2 by=4; apply c v=3/9 on=w2 by=5; changes 0; changes 0 not=4;
         changes 2 not=4; delete a; changes 0; changes 3 not=5; apply b v=3/9 on=w2 by=5 left=3600s; changes 0 not=4; changes 9;
         remove w2; changes 0; wait 1801s; changes 0",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            apply b v=3/9 on=w2 by=4 -> [Inserted] Bound w2 v3/9
            apply c v=3/9 on=w2 by=5 -> [Inserted] Bound w2 v3/9
            changes 0 -> a w1 v1, b w2 v3, c w2 v3, at 3
            changes 0 not=4 -> a w1 v1, c w2 v3, at 3
            changes 2 not=4 -> c w2 v3, at 3
            delete a -> done
            changes 0 -> b w2 v3, c w2 v3, a released v2, at 4
            changes 3 not=5 -> a released v2, at 4
            apply b v=3/9 on=w2 by=5 left=3600s -> [Refreshed] Bound w2 v3/9
            changes 0 not=4 -> c w2 v3, a released v2, b w2 v3, at 5
            changes 9 -> at 5 gap
            remove w2 -> done
            changes 0 -> c w2 v3, a released v2, b w2 v3, at 5
            wait 1801s -> 1 sessions, 0 held, 0 vms
            changes 0 -> b w2 v3, at 5
        "#]],
    );
}

#[test]
fn a_position_too_old_is_a_gap() {
    let mut world = World::new(Limits { journal_max: 2, ..Limits::SERVICE });
    let said = world.play(
        "worker w1; apply a v=1/9 on=w1; apply b v=1/9 on=w1; apply c v=1/9 on=w1; changes 0; changes 1; apply b v=2/9; changes 1",
    );
    expect![[r#"
        worker w1 -> Created
        apply a v=1/9 on=w1 -> [Inserted] Bound w1 v1/9
        apply b v=1/9 on=w1 -> [Inserted] Bound w1 v1/9
        apply c v=1/9 on=w1 -> [Inserted] Bound w1 v1/9
        changes 0 -> at 3 gap
        changes 1 -> b w1 v1, c w1 v1, at 3
        apply b v=2/9 -> [ReplacedNewer] Released - v2/9
        changes 1 -> c w1 v1, b released v2, at 4
    "#]]
    .assert_eq(&said);
    let (all, more) = world.state.bindings_from(world.now, SessionId(0), 2);
    let (rest, end) = world.state.bindings_from(world.now, more.unwrap(), 2);
    assert_eq!((all.len() + rest.len(), end), (3, None));
}

fn world_of_workers() -> World {
    let mut world = World::new(Limits::SERVICE);
    for id in ["w1", "w2"] {
        let json = serde_json::json!({"endpoints": [{"address": format!("{id}.test:1"), "dp_size": 4}]});
        let spec = declare::parse(json.to_string().as_bytes(), Some(id)).unwrap();
        world.apply(Command::PutWorker { spec });
    }
    world
}

fn apply(world: &mut World, writer: u64, bindings: &[Binding]) -> Vec<Outcome> {
    match world.apply(Command::Apply { writer, bindings: bindings.to_vec() }) {
        Reply::Applied(outcomes) => outcomes,
        other => panic!("{other:?}"),
    }
}

fn all(world: &World) -> Vec<Binding> {
    world.state.bindings_from(world.now, SessionId(0), usize::MAX).0
}

/// A version is given once: two places under one version come from two writers only.
fn binding() -> impl Strategy<Value = Binding> {
    (0..4u8, 1..5u64, 1..3u64, 1..5u64).prop_map(|(name, seq, writer, minutes)| {
        let one = u64::from(name) * 100 + seq * 10 + writer;
        let session: SessionRef = session(&name.to_string());
        // Of one session and version always the same place.
        let target = (one % 5 > 0).then(|| Target {
            worker: worker_id(if one.is_multiple_of(2) { "w1" } else { "w2" }),
            rank: Some(Rank(u32::try_from(one % 4).unwrap())),
        });
        let version = Version { seq, writer };
        Binding { session, version, target, expires_in_ms: Millis(minutes * 60_000), generation: 0 }
    })
}

proptest! {
    /// In any order, in any batches, however often: one end.
    #[test]
    fn states_agree_whatever_the_order(
        (bindings, shuffled) in prop::collection::vec(binding(), 1..24).prop_flat_map(|bindings| {
            let twice: Vec<Binding> = bindings.iter().chain(&bindings).cloned().collect();
            (Just(bindings), Just(twice).prop_shuffle())
        }),
        batch in 1..6usize,
    ) {
        let (mut one, mut other) = (world_of_workers(), world_of_workers());
        apply(&mut one, 4, &bindings);
        for batch in shuffled.chunks(batch) {
            apply(&mut other, 5, batch);
        }
        prop_assert_eq!(all(&one), all(&other));
        prop_assert!(apply(&mut one, 6, &all(&other)).iter().all(|outcome| *outcome == Outcome::Refreshed));
    }

    /// Two that tell each other what changed, cut off at any time, agree once each has heard the other out. Nothing is echoed.
    #[test]
    fn two_that_follow_each_other_agree(steps in prop::collection::vec((0..3u8, binding()), 1..40)) {
        let mut worlds = [world_of_workers(), world_of_workers()];
        let mut positions = [Position(0); 2];
        for (what, binding) in steps {
            match what {
                0 | 1 => drop(apply(&mut worlds[usize::from(what)], 9, &[binding])),
                _ => follow(&mut worlds, &mut positions, 3),
            }
        }
        while follow_all(&mut worlds, &mut positions) > 0 {}
        prop_assert_eq!(all(&worlds[0]), all(&worlds[1]));
    }
}

/// Each hears some of the other's changes.
fn follow(worlds: &mut [World; 2], positions: &mut [Position; 2], max: usize) {
    for reader in 0..2 {
        let heard = heard(worlds, positions, reader, max);
        apply(&mut worlds[reader], writer_of(1 - reader), &heard.bindings);
    }
}

fn follow_all(worlds: &mut [World; 2], positions: &mut [Position; 2]) -> usize {
    let mut told = 0;
    for reader in 0..2 {
        let heard = heard(worlds, positions, reader, usize::MAX);
        told += heard.bindings.len();
        apply(&mut worlds[reader], writer_of(1 - reader), &heard.bindings);
    }
    told
}

fn heard(worlds: &[World; 2], positions: &mut [Position; 2], reader: usize, max: usize) -> Changes {
    let teller = &worlds[1 - reader];
    let heard = teller.state.changes(teller.now, positions[reader], writer_of(reader), max);
    assert!(!heard.gap);
    positions[reader] = heard.position;
    heard
}

const fn writer_of(state: usize) -> u64 {
    if state == 0 { 100 } else { 200 }
}
