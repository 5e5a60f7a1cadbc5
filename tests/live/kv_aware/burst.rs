//! Many at once with one beginning: what is cached somewhere draws them, and must not draw them all.

use std::collections::BTreeMap;

use super::fleet::{Answer, Ask, all_heard, plan, start, words};
use crate::support::nothing_in_flight;
use e2e::World;
use e2e::client::Slot;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// All at once; how many each slot served.
pub(super) async fn at_once(world: &World, asks: Vec<Ask>) -> (BTreeMap<Slot, usize>, Vec<Answer>) {
    let mut turns = JoinSet::new();
    for ask in asks {
        let request = world.client().post(ask.path, ask.session.as_deref(), &ask.body);
        turns.spawn(async move { Answer::of(&e2e::client::send(request).await.unwrap()) });
    }
    let answers = turns.join_all().await;
    let mut served = BTreeMap::new();
    answers.iter().for_each(|answer| *served.entry(answer.slot.clone()).or_insert(0) += 1);
    (served, answers)
}

/// Why requests were placed without the service, and how often.
async fn fallen_back(world: &World) -> Vec<(String, u64)> {
    let all = world.envoy().stats("rankpin.requests.").await.unwrap();
    let words = ["route_timeout", "route_failed", "route_malformed", "breaker_open", "prompt_unread"];
    all.into_iter()
        .filter(|(name, count)| *count > 0 && words.iter().any(|word| name.ends_with(word)))
        .collect()
}

/// C6: five hundred twins of four thousand tokens over eight slots, of which one has them cached.
#[tokio::test(flavor = "multi_thread")]
async fn c6_five_hundred_twins_spread_over_all_slots() {
    let world = start(plan(4, 2, &[])).await;
    let prefix = words(7, 3200);
    let ask = |n: u32| {
        let ask = Ask::chat(
            &json!([{"role": "system", "content": prefix}, {"role": "user", "content": words(n, 5)}]),
        );
        let ask = ask.with("max_tokens", json!(1));
        if n.is_multiple_of(2) { ask } else { ask.session(&format!("twin-{n}")) }
    };
    let first = ask(100_000).send(&world).await;
    assert!(first.prompt_tokens >= 4000, "{first:?}");
    all_heard(&world).await;
    // Long enough that all of them are there at once.
    for engine in &world.engines {
        engine.fault("slow=5000", None).await.unwrap();
    }
    let (served, _) = at_once(&world, (0..500).map(ask).collect()).await;
    let most = *served.values().max().unwrap();
    println!("500 twins: {:?}", served.values());
    // Those that the service did not place in time were spread without it.
    let alone = fallen_back(&world).await;
    assert!(most as f64 / (500.0 / 8.0) <= 1.5, "{served:?}; {alone:?}");
    nothing_in_flight(&world).await;
}

/// B10: agents that share a system prompt and have no keys: each finds its own conversation again, and they are not all on one rank.
#[tokio::test(flavor = "multi_thread")]
async fn b10_sixteen_agents_without_keys_are_not_all_on_one_rank() {
    let world = start(plan(3, 4, &[])).await;
    let system = json!({"role": "system", "content": words(3, 1500)});
    let mut talks: Vec<Vec<Value>> = vec![vec![system]; 16];
    for engine in &world.engines {
        engine.fault("slow=3000", None).await.unwrap();
    }
    let (mut found, mut asked) = (0, 0);
    for turn in 0..4 {
        for (agent, talk) in (0_u32..).zip(&mut talks) {
            talk.push(json!({"role": "user", "content": words(50 + 16 * turn + agent, 40)}));
        }
        let asks = talks.iter().map(|talk| Ask::chat(&json!(talk)).with("max_tokens", json!(1))).collect();
        let (served, answers) = at_once(&world, asks).await;
        println!("turn {turn}: {served:?}");
        // Of so few requests a slot may have some above its share.
        assert!(served.len() >= 3, "turn {turn}: {served:?}");
        assert!(served.values().all(|count| *count <= 8), "turn {turn}: {served:?}");
        all_heard(&world).await;
        if turn > 0 {
            found += answers.iter().map(|answer| answer.cached_tokens).sum::<u64>();
            asked += answers.iter().map(|answer| answer.prompt_tokens).sum::<u64>();
        }
    }
    assert!(found * 2 > asked, "of {asked} tokens {found} were found: the shared prompt alone is more");
}
