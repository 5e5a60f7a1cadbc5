//! Requests that never ask: hashed, without a session, without affinity, without a topology, refused.

mod common;
mod world;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use expect_test::{Expect, expect};
use routing::config::{NoTopology, PoolBy};
use routing::contract::{Affinity, Policy};
use std::collections::BTreeSet;
use world::World;

#[expect(clippy::needless_pass_by_value, reason = "an Expect is written where it is used")]
fn check(mut world: World, script: &str, expected: Expect) {
    expected.assert_eq(&world.run(script));
}

#[test]
fn session_hash_never_asks_and_gives_the_ranks_of_the_design() {
    let world = World::with(|world| {
        world.topology.pools[0].policy = Policy::SessionHash;
        world.topology.workers.retain(|w| w.id.as_str() == "w1");
    });
    check(
        world,
        "head session=session-1; answer 200; end; head session=conv-42; end; head session=s; end; page s; report; load",
        expect![[r#"
            head session=session-1 -> continue, #session_hash, to worker-w1 rank 5
            answer 200 -> nothing
            end -> nothing
            head session=conv-42 -> continue, #session_hash, to worker-w1 rank 6
            end -> nothing
            head session=s -> continue, #session_hash, to worker-w1 rank 7
            end -> nothing
            page s -> empty
            report -> [] load []
            load -> 0
        "#]],
    );
}

#[test]
fn session_hash_is_the_same_everywhere_and_uses_every_slot() {
    let mut world = World::session_hash();
    let mut used = BTreeSet::new();
    for n in 0..100 {
        let traces: BTreeSet<String> = (0..4)
            .map(|vm| {
                let trace = world.run(&format!("r: head session=k{n} vm={vm}; r: end"));
                assert!(trace.contains("#session_hash") && !trace.contains("ask"), "{trace}");
                trace.split(" -> ").nth(1).unwrap().to_owned()
            })
            .collect();
        assert_eq!(traces.len(), 1, "{traces:?}");
        used.extend(traces);
    }
    assert_eq!(used.len(), 9, "{used:?}");
}

#[test]
fn without_a_session_requests_spread_and_carry_no_rank() {
    for policy in [Policy::LeastLoaded, Policy::SessionHash] {
        let mut world = World::with(|world| world.topology.pools[0].policy = policy);
        let mut used = BTreeSet::new();
        for n in 0..64 {
            let trace = world.run(&format!("r{n}: head"));
            assert!(trace.contains("#session_key_missing") && !trace.contains("rank"), "{trace}");
            used.insert(trace.split(" -> ").nth(1).unwrap().to_owned());
        }
        assert_eq!(used.len(), 3, "{policy:?}: {used:?}");
        if policy == Policy::LeastLoaded {
            let directory = world.vms[0].directory.as_ref().unwrap();
            let loads: Vec<u32> =
                directory.workers.iter().map(|w| world.vms[0].loads.of_worker(w.hash)).collect();
            assert_eq!(loads.iter().max().unwrap() - loads.iter().min().unwrap(), 1, "{loads:?}");
        }
    }
}

#[test]
fn a_pool_without_affinity_keeps_nothing() {
    let mut world = World::with(|world| world.topology.pools[0].affinity = Affinity::Off);
    let trace = world.run("head session=s; answer 200; end; page s; report");
    assert!(trace.contains("#affinity_off") && trace.contains("page s -> empty"), "{trace}");
    assert!(trace.ends_with("report -> [] load []\n"), "{trace}");
}

#[test]
fn a_key_over_the_limit_is_the_clients_fault() {
    let key = "k".repeat(257);
    let trace = World::new().run(&format!("head session={key}; end; load; report"));
    expect![[r#"
        head session=LONG -> pause, #key_too_long, respond 400 {"error":{"message":"the session id is longer than 256 bytes","type":"invalid_request_error","param":null,"code":"session_id_too_long"}}
        end -> nothing
        load -> 0
        report -> [] load []
    "#]].assert_eq(&trace.replace(&key, "LONG"));
    let fits = "k".repeat(256);
    assert!(World::new().run(&format!("head session={fits}")).contains("ask"));
}

#[test]
fn without_a_topology_the_config_decides() {
    check(
        World::without_topology(NoTopology::PassThrough),
        "head session=s; answer 200; end; head; end; load; report",
        expect![[r#"
            head session=s -> continue, #no_topology, to default
            answer 200 -> not looked at
            end -> nothing
            head -> continue, #no_topology, to default
            end -> nothing
            load -> 0
            report -> [] load []
        "#]],
    );
    check(
        World::without_topology(NoTopology::Unavailable),
        "head session=s; end; head; end; load; report",
        expect![[r#"
            head session=s -> pause, #no_topology, respond 503 retry-after 1 {"error":{"message":"no model worker is known yet; try again shortly","type":"server_error","param":null,"code":"no_workers_known"}}
            end -> nothing
            head -> pause, #no_topology, respond 503 retry-after 1 {"error":{"message":"no model worker is known yet; try again shortly","type":"server_error","param":null,"code":"no_workers_known"}}
            end -> nothing
            load -> 0
            report -> [] load []
        "#]],
    );
}

#[test]
fn an_unknown_pool_is_no_topology() {
    let unknown = World::with(|world| world.config.pool_by = PoolBy::Fixed(common::pool_name("embed")));
    check(
        unknown,
        "head session=s; end",
        expect![[r#"
        head session=s -> continue, #no_topology, to default
        end -> nothing
    "#]],
    );
    let two = World::with(|world| world.topology.pools.push(common::pool("embed")));
    check(
        two,
        "head session=s; end",
        expect![[r#"
        head session=s -> continue, #no_topology, to default
        end -> nothing
    "#]],
    );
}

#[test]
fn a_spoofed_rank_is_counted_and_its_mark_goes_no_further() {
    let mut world = World::session_hash();
    let trace = world.run("head session=s mark=3; end; b: head session=s; b: end");
    assert_eq!(trace.matches("#spoofed").count(), 1, "{trace}");
    world.run("c: head session=s mark=3");
    assert_eq!(world.header("c", "x-rankpin-spoofed"), None);
}
