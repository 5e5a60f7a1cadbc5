//! Soft affinity and who chooses the rank: the filter stays within the margin, past it it asks, and never computes a move.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use routing::contract::{Affinity, RankChoice, soft_stays};
use world::World;

fn soft(percent: u32) -> World {
    World::with(|world| {
        world.topology.pools[0].affinity = Affinity::Soft;
        world.topology.pools[0].soft_margin_percent = percent;
    })
}

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

/// Binds session `s` to `w1` and leaves so many requests in flight there and on each other worker.
fn loaded(mut world: World, bound: usize, others: usize) -> World {
    world.run("head session=s; route bound w1 v1; end");
    world.put_load("w1", bound);
    for other in ["w0", "w2"] {
        world.put_load(other, others);
    }
    world
}

#[test]
fn the_margin_is_exact() {
    let cases = [
        (100, 2, 0, true),
        (100, 3, 0, false),
        (100, 6, 4, true),
        (100, 7, 4, false),
        (150, 8, 4, true),
        (150, 9, 4, false),
        (150, 9, 5, true),
        (150, 10, 5, false),
        (0, 3, 1, true),
    ];
    for (percent, bound, best, stays) in cases {
        assert_eq!(soft_stays(percent, bound, best), stays, "{percent} % {bound} {best}");
        let (bound, best) = (usize::try_from(bound).unwrap(), usize::try_from(best).unwrap());
        let trace = loaded(soft(percent), bound, best).run("head session=s");
        assert_eq!(trace.contains("#pinned"), stays, "{percent} % {bound} {best}: {trace}");
        assert_eq!(trace.contains("pause, ask"), !stays, "{trace}");
    }
}

#[test]
fn past_the_margin_the_service_decides() {
    check(
        loaded(soft(150), 9, 0),
        "head session=s; route bound w1 v1; answer 200; end;
         b: head session=s; b: route held w0 v2 hold 5; b: answer 200; b: end; page s;
         c: head session=s; c: end; report",
        expect![[r#"
            head session=s -> pause, ask cached w1 v1
            route bound w1 v1 -> put bound w1 v1 (no change), #routed_bound, resume, to worker-w1
            answer 200 -> nothing
            end -> nothing
            b: head session=s -> pause, ask cached w1 v1
            b: route held w0 v2 hold 5 -> put held w0 v2, #routed_held, resume, to worker-w0
            b: answer 200 -> put bound w0 v2, #committed, report now
            b: end -> nothing
            page s -> bound w0 v2
            c: head session=s -> continue, #pinned, to worker-w0
            c: end -> nothing
            report -> [committed r3 hold 5 w0 v2] load [w1x9]
        "#]],
    );
}

#[test]
fn a_move_that_fails_leaves_the_service_to_say_where_it_was() {
    check(
        loaded(soft(150), 9, 0),
        "head session=s; route held w0 v2 hold 5; answer 500; end; page s; b: head session=s; b: route bound w1 v1; b: end",
        expect![[r#"
            head session=s -> pause, ask cached w1 v1
            route held w0 v2 hold 5 -> put held w0 v2, #routed_held, resume, to worker-w0
            answer 500 -> nothing
            end -> forget v2, #rolled_back, report now
            page s -> empty
            b: head session=s -> pause, ask unsent [failed r2 hold 5]
            b: route bound w1 v1 -> put bound w1 v1, #routed_bound, resume, to worker-w1
            b: end -> nothing
        "#]],
    );
}

/// What other Envoys have counts once two fleets have it, or once no other one came for a while; what this VM has counts at once.
#[test]
fn what_others_have_counts_once_it_stands() {
    let mut world = soft(150);
    world.run("head session=s; route bound w1 v1; answer 200; end");
    let next = |world: &mut World, at: u64, version: u64, busy: u32| {
        world.run(&format!("@{at}"));
        world.take_over(version, &[("w0", 0), ("w1", busy), ("w2", 0)]);
        let said = world.run("head session=s; end");
        said.contains("pause, ask")
    };
    assert!(!next(&mut world, 1000, 2, 9), "nothing is known of it before");
    assert!(!next(&mut world, 1049, 3, 9), "too soon after the last one to say more");
    assert!(!next(&mut world, 1100, 3, 9), "the same fleet again says nothing new");
    assert!(next(&mut world, 1101, 4, 3), "three of them were there before");
    assert!(!next(&mut world, 1200, 5, 2), "within the slack");
    assert!(!next(&mut world, 1300, 6, 9), "seven came with the last one");
    assert!(!world.run("@1549; head session=s; end").contains("pause, ask"));
    assert!(world.run("@1550; head session=s; end").contains("pause, ask"), "nothing took them back");
    assert!(!next(&mut world, 1600, 7, 0));
    world.put_load("w1", 3);
    assert!(next(&mut world, 1700, 8, 0), "its own are known as they are");
}

#[test]
fn without_the_service_it_stays() {
    check(
        loaded(soft(150), 9, 0),
        "head session=s; route timeout; answer 200; end; page s",
        expect![[r#"
        head session=s -> pause, ask cached w1 v1
        route timeout -> #route_timeout, #pinned, resume, to worker-w1
        answer 200 -> nothing
        end -> nothing
        page s -> bound w1 v1
    "#]],
    );
}

#[test]
fn a_suspect_is_not_preferred() {
    let world = loaded(soft(150), 0, 0);
    check(
        world,
        "fleet w1 suspect; head session=s; route bound w1 v1; end",
        expect![[r#"
        head session=s -> pause, ask cached w1 v1
        route bound w1 v1 -> put bound w1 v1 (no change), #routed_bound, resume, to worker-w1
        end -> nothing
    "#]],
    );
}

#[test]
fn who_chooses_the_rank() {
    let ranks = |affinity, rank, script: &str| {
        let mut world = World::with(|world| {
            world.topology.pools[0].affinity = affinity;
            world.topology.pools[0].rank = rank;
        });
        let trace = world.run(script);
        let last = trace.lines().last().unwrap_or_default();
        last.split_once(" to worker-").map(|(_, to)| to.to_owned())
    };
    let (worker_only, ranked) = (
        "head session=session-1; route bound w1 v1; end",
        "head session=session-1; route bound w1 rank 6 v1; end",
    );
    let pinned = "; head session=session-1";
    let both = |affinity, rank| {
        [worker_only, ranked].map(|first| ranks(affinity, rank, &format!("{first}{pinned}")).unwrap())
    };
    use {Affinity::Hard, Affinity::Soft, RankChoice::Auto, RankChoice::Engine, RankChoice::Pinned};
    assert_eq!(both(Hard, Auto), ["w1 rank 5", "w1 rank 6"], "hard keeps ranks");
    assert_eq!(both(Hard, Pinned), ["w1 rank 5", "w1 rank 6"]);
    assert_eq!(both(Hard, Engine), ["w1", "w1"], "hard that leaves them to the engine");
    assert_eq!(both(Soft, Auto), ["w1", "w1 rank 6"], "soft sends a rank only if bound");
    assert_eq!(both(Soft, Pinned), ["w1 rank 5", "w1 rank 6"], "soft that keeps ranks");
    assert_eq!(both(Soft, Engine), ["w1", "w1"]);
}

#[test]
fn a_worker_only_session_always_takes_the_same_endpoint() {
    let mut world = soft(150);
    world.topology.workers[1] =
        common::worker("w1", &[common::endpoint("10.0.0.2:80", 0, 4), common::endpoint("10.0.0.4:80", 4, 4)]);
    world.run("fleet w1 ready");
    for (key, cluster) in [("session-1", "worker-w1.1"), ("conv-42", "worker-w1")] {
        for vm in 0..4 {
            let trace = world.run(&format!("h: head session={key} vm={vm}; h: route bound w1 v1; h: end"));
            assert!(trace.contains(&format!("to {cluster}\n")), "{key} {vm}: {trace}");
        }
    }
}
