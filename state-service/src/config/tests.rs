//! Config files, right and wrong.

use super::{KvSettings, OtherPools, ServiceConfig, fields, parse};
use expect_test::{Expect, expect};
use routing::contract::{Affinity, OnAllOverloaded, OnOverload, Policy, RankChoice, RankPick, Ranks};
use routing::id::PoolName;
use routing::policy::kv::Weights;
use routing::time::Millis;
use serde_json::{Value, json};

fn refused(value: &Value, expected: &Expect) {
    let faults = parse(value.to_string().as_bytes()).expect_err("accepted");
    expected.assert_eq(&faults.to_string());
}

#[test]
fn without_a_file_there_is_one_pool_and_others_spring_up() {
    let config = ServiceConfig::without_file();
    assert_eq!(config.other_pools, OtherPools::SpringUp);
    let [pool] = config.pools.as_slice() else { panic!("{config:?}") };
    assert_eq!((pool.name.as_str(), pool.ttl_ms), ("default", Millis::from_secs(1800)));
}

#[test]
fn pools_have_defaults_and_are_sorted_by_name() {
    let file = json!({
        "pools": [{ "name": "b", "policy": "session_hash", "affinity": "off", "ttl_s": 60 }, { "name": "a" }],
        "workers": [{ "id": "w1", "pool": "a", "endpoints": [{ "address": "a:1" }] }],
    });
    let config = parse(file.to_string().as_bytes()).unwrap();
    let [a, b] = config.pools.as_slice() else { panic!("{config:?}") };
    assert_eq!(
        (a.policy, a.affinity, a.ttl_ms),
        (Policy::LeastLoaded, Affinity::Hard, Millis::from_secs(1800))
    );
    assert_eq!((b.policy, b.affinity, b.ttl_ms), (Policy::SessionHash, Affinity::Off, Millis::from_secs(60)));
    assert_eq!((config.workers.len(), config.other_pools), (1, OtherPools::Refused));
}

#[test]
fn a_soft_or_direct_pool_says_how_and_the_rest_has_defaults() {
    let file = json!({ "pools": [
        { "name": "a" },
        { "name": "b", "policy": "direct", "affinity": "soft", "rank": "engine", "rank_pick": "least_loaded",
          "soft_margin_percent": 100 },
        { "name": "c", "affinity": "soft", "rank": "pinned", "rank_pick": "hash", "soft_margin_percent": 10_000 },
        { "name": "d", "affinity": "soft", "rank": "auto" },
    ]});
    let config = parse(file.to_string().as_bytes()).unwrap();
    let said = config
        .pools
        .iter()
        .map(|p| (p.policy, p.affinity, p.rank, p.rank_pick, p.soft_margin_percent, p.ranks()));
    let expected = [
        (Policy::LeastLoaded, Affinity::Hard, RankChoice::Auto, RankPick::Hash, 150, Ranks::Pinned),
        (Policy::Direct, Affinity::Soft, RankChoice::Engine, RankPick::LeastLoaded, 100, Ranks::Engine),
        (Policy::LeastLoaded, Affinity::Soft, RankChoice::Pinned, RankPick::Hash, 10_000, Ranks::Pinned),
        (Policy::LeastLoaded, Affinity::Soft, RankChoice::Auto, RankPick::Hash, 150, Ranks::Bound),
    ];
    assert_eq!(said.collect::<Vec<_>>(), expected);
}

#[test]
fn a_pool_says_what_becomes_of_overloaded_turns() {
    let file = json!({ "pools": [
        { "name": "a", "models": ["m", "b", "m"], "in_flight_limit": 0 },
        { "name": "b", "on_overload": "wait", "wait_ms": 0, "on_all_overloaded": "refuse", "in_flight_limit": 64 },
        { "name": "c", "on_overload": "refuse", "wait_ms": 2000 },
    ]});
    let config = parse(file.to_string().as_bytes()).unwrap();
    let said = config
        .pools
        .iter()
        .map(|p| (p.on_overload, p.wait_ms.0, p.on_all_overloaded, p.in_flight_limit, p.models.join(" ")));
    let expected = [
        (OnOverload::Spill, 2000, OnAllOverloaded::LeastLoaded, None, "b m".to_owned()),
        (OnOverload::Wait, 0, OnAllOverloaded::Refuse, Some(64), String::new()),
        (OnOverload::Refuse, 2000, OnAllOverloaded::LeastLoaded, None, String::new()),
    ];
    assert_eq!(said.collect::<Vec<_>>(), expected);
}

/// The documentation is written from the table, so each default in it must be the parser's.
#[test]
fn a_pool_that_spells_out_the_table_s_defaults_is_one_that_says_nothing() {
    let mut spelt = json!({ "name": "a" });
    for field in fields().iter().filter(|field| field.parent() == "pools[]") {
        if let Ok(default) = serde_json::from_str::<Value>(&field.default_text()) {
            spelt[field.name()] = default;
        }
    }
    assert!(spelt.as_object().unwrap().len() > 10, "{spelt}");
    let of = |pool: &Value| parse(json!({ "pools": [pool] }).to_string().as_bytes()).unwrap().pools;
    assert_eq!(of(&spelt), of(&json!({ "name": "a" })));
    assert_eq!(of(&spelt)[0], routing::contract::PoolInfo::with_defaults(of(&spelt)[0].name.clone()));
}

#[test]
fn every_fault_is_told_at_once_with_its_path() {
    refused(
        &json!({
            "pools": [
                { "name": "a", "policy": "fastest", "affinity": "warm", "ttl_s": 0 },
                { "name": "a", "ttl": 5 },
                { "ttl_s": 31_536_001 },
                { "name": "b", "rank": "hash", "rank_pick": "pinned", "soft_margin_percent": 99 },
                { "name": "c", "rank": 1, "rank_pick": [], "soft_margin_percent": 10_001 },
                { "name": "d", "soft_margin_percent": 1.5 },
            ],
            "workers": [
                { "id": "w1", "endpoints": [{ "address": "a:1" }] },
                { "id": "w1", "pool": "a", "endpoints": [{ "address": "a" }] },
                { "pool": "a", "endpoints": [] },
            ],
            "listen": "0.0.0.0",
        }),
        &expect![[r#"
            pools[0].policy: "fastest" is not known (allowed: least_loaded, session_hash, round_robin, random, power_of_two, device_aware, direct, kv_aware)
            pools[0].affinity: "warm" is not known (allowed: hard, soft, off)
            pools[0].ttl_s: 0 is out of range (allowed: a whole number in 1..=31536000)
            pools[1].ttl: unknown field (allowed: name, policy, affinity, ttl_s, device_ratio, rank, rank_pick, soft_margin_percent, on_overload, wait_ms, on_all_overloaded, in_flight_limit, models, tokens, kv)
            pools[1].name: a is listed twice (allowed: each name once)
            pools[2].name: is missing (allowed: a pool name)
            pools[2].ttl_s: 31536001 is out of range (allowed: a whole number in 1..=31536000)
            pools[3].rank: "hash" is not known (allowed: auto, pinned, engine)
            pools[3].rank_pick: "pinned" is not known (allowed: hash, least_loaded)
            pools[3].soft_margin_percent: 99 is out of range (allowed: a whole number in 100..=10000)
            pools[4].rank: is a number (allowed: auto, pinned, engine)
            pools[4].rank_pick: is a list (allowed: hash, least_loaded)
            pools[4].soft_margin_percent: 10001 is out of range (allowed: a whole number in 100..=10000)
            pools[5].soft_margin_percent: 1.5 is not whole (allowed: a whole number in 100..=10000)
            workers[0].pool: pool default is not listed (allowed: a, b, c, d)
            workers[1].endpoints[0].address: "a" has no port (allowed: host:port, or [IPv6]:port)
            workers[1].id: w1 is listed twice (allowed: each id once)
            workers[2].id: is missing (allowed: 1..=63 bytes of letters, digits, '-', '_', '.')
            workers[2].endpoints: has 0 entries (allowed: 1..=64 entries)
            listen: unknown field (allowed: pools, workers)"#]],
    );
}

#[test]
fn a_file_without_pools_is_refused() {
    refused(&json!({}), &expect!["pools: has 0 entries (allowed: 1..=256 entries)"]);
    refused(&json!([]), &expect!["(document): is a list (allowed: a JSON object)"]);
    assert!(parse(b"pools: []").unwrap_err().to_string().contains("is not JSON"));
}

#[test]
fn a_field_given_twice_is_refused_with_its_path() {
    let text = br#"{"pools":[{"name":"a","ttl_s":1,"ttl_s":2}],"pools":[{"name":"b"}]}"#;
    let faults = parse(text).unwrap_err();
    let paths: Vec<&str> = faults.list.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(paths, ["pools[0].ttl_s", "pools"]);
}

#[test]
fn a_pool_that_chooses_by_prompt_says_what_weighs_what() {
    let file = json!({ "pools": [
        { "name": "a", "policy": "kv_aware", "tokens": { "mode": "engine" }, "kv": {
            "prefill_scale_percent": 200, "host_percent": 50, "temperature_percent": 10, "load_cap_percent": 150,
            "prediction_ttl_ms": 500, "prediction_percent": 90, "placement_ttl_s": 60, "block_size": 32 } },
        { "name": "b", "policy": "kv_aware" },
        { "name": "c", "policy": "kv_aware", "kv": {} },
    ] });
    let config = parse(file.to_string().as_bytes()).unwrap();
    assert_eq!(config.pools.iter().map(|pool| pool.reads_prompt).collect::<Vec<_>>(), [true, false, false]);
    let of = |name: &str| config.kv.get(&PoolName::parse(name).unwrap());
    let a = of("a").unwrap();
    let weights =
        Weights { prefill_scale: 200, host: 50, predicted: 90, temperature: 10, ..Weights::default() };
    assert_eq!((a.weights, a.load_cap, a.block_size.unwrap().get()), (weights, 150, 32));
    assert_eq!((a.prediction_ttl, a.placement_ttl), (Millis(500), Millis::from_secs(60)));
    assert_eq!((of("b"), of("c")), (None, Some(&KvSettings::default())));
}

#[test]
fn what_a_choice_by_prompt_cannot_use_is_refused() {
    refused(
        &json!({ "pools": [
            { "name": "a", "tokens": { "mode": "engine" }, "kv": {} },
            { "name": "b", "policy": "kv_aware", "kv": { "load_cap_percent": 99, "gpu_percent": 101, "blocks": 1 } },
            { "name": "c", "policy": "kv_aware", "kv": 5 },
        ] }),
        &expect![[r#"
            pools[0].kv: says how slots are compared, which this pool's policy does not (allowed: policy "kv_aware", or leave it out)
            pools[0].tokens: says how slots are compared, which this pool's policy does not (allowed: policy "kv_aware", or leave it out)
            pools[1].kv.gpu_percent: 101 is out of range (allowed: a whole number in 0..=100)
            pools[1].kv.load_cap_percent: 99 is out of range (allowed: a whole number in 100..=10000)
            pools[1].kv.blocks: unknown field (allowed: prefill_scale_percent, gpu_percent, host_percent, disk_percent, prediction_percent, temperature_percent, load_cap_percent, prediction_ttl_ms, placement_ttl_s, block_size)
            pools[2].kv: is a number (allowed: a JSON object)"#]],
    );
}
