//! A trace through Envoy: thousands of requests whose beginnings are each other's, as conversations' are. `RANKPIN_TRACE` names a file in
//! Mooncake's format to take them from (its first lines); else they are made.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::fleet::{Ask, BLOCK, plan, start};
use e2e::client::Slot;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const REQUESTS: usize = 2000;
/// Requests under way at once.
const LANES: usize = 16;
/// Caches that keep everything.
const ENGINE: [&str; 2] = ["--cache-blocks", "100000"];
/// Of four engines.
const SLOTS: usize = 8;
/// Longest prompt taken of a trace's line, in blocks.
const BLOCKS_MAX: usize = 200;

/// A prompt as names of its blocks.
type Prompt = Vec<u64>;

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_requests_find_what_was_cached() {
    let prompts = match std::env::var_os("RANKPIN_TRACE") {
        Some(path) => read(&std::fs::read_to_string(path).unwrap()),
        None => made(),
    };
    assert_eq!(prompts.len(), REQUESTS);
    // Engines here answer within milliseconds: an end that is told only a tenth of a second later would be ten times the load.
    let plan = plan(4, 2, &ENGINE).edit(|config| config.plugin(|own| own["tick_ms"] = json!(10)));
    let world = Arc::new(start(plan).await);
    let (ideal, blind) = (ideal(&prompts), blind(&prompts));
    let (prompts, next) = (Arc::new(prompts), Arc::new(AtomicUsize::new(0)));
    let mut lanes = JoinSet::new();
    for _ in 0..LANES {
        let (world, prompts, next) = (Arc::clone(&world), Arc::clone(&prompts), Arc::clone(&next));
        lanes.spawn(async move {
            let mut answers = Vec::new();
            while let Some(prompt) = prompts.get(next.fetch_add(1, Ordering::Relaxed)) {
                let ask = Ask::completion(&json!(tokens(prompt))).with("max_tokens", json!(1));
                answers.push(ask.send(&world).await);
            }
            answers
        });
    }
    let answers: Vec<_> = lanes.join_all().await.into_iter().flatten().collect();
    let found: u64 = answers.iter().map(|answer| answer.cached_tokens).sum();
    let asked: u64 = answers.iter().map(|answer| answer.prompt_tokens).sum();
    let mut served: BTreeMap<Slot, u64> = BTreeMap::new();
    answers.iter().for_each(|answer| *served.entry(answer.slot.clone()).or_default() += 1);
    let most = *served.values().max().unwrap() as f64 / (REQUESTS as f64 / SLOTS as f64);
    let as_said = answers.iter().filter(|answer| answer.is_as_said()).count();
    let hit = found as f64 / asked as f64;
    println!(
        "{REQUESTS} requests: {:.1} % of tokens found, {:.1} % possible, {:.1} % blindly; most/mean {most:.2}; {:.1} % as said",
        100.0 * hit,
        100.0 * ideal,
        100.0 * blind,
        100.0 * as_said as f64 / REQUESTS as f64
    );
    // Load counts as well, and a slot that is busy loses its hits: not all of it is to be had.
    assert!(hit - blind >= 0.5 * (ideal - blind), "{hit:.3}, blindly {blind:.3}, at most {ideal:.3}");
    // While little is under way, what is cached weighs more than an even count.
    assert!(served.len() == SLOTS && most <= 2.5, "{served:?}");
}

/// What one cache without limits would find.
fn ideal(prompts: &[Prompt]) -> f64 {
    let mut seen: HashSet<&[u64]> = HashSet::new();
    let (mut found, mut asked) = (0, 0);
    for prompt in prompts {
        asked += prompt.len();
        found += (1..=prompt.len()).take_while(|end| seen.contains(&prompt[..*end])).count();
        seen.extend((1..=prompt.len()).map(|end| &prompt[..end]));
    }
    found as f64 / asked as f64
}

/// What as many caches without limits would find, were each request sent anywhere.
fn blind(prompts: &[Prompt]) -> f64 {
    let mut parts: Vec<Vec<Prompt>> = vec![Vec::new(); SLOTS];
    let mut state = 7_u64;
    for prompt in prompts {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        parts[(state >> 33) as usize % SLOTS].push(prompt.clone());
    }
    let blocks = |prompts: &[Prompt]| prompts.iter().map(Vec::len).sum::<usize>() as f64;
    parts.iter().map(|part| ideal(part) * blocks(part)).sum::<f64>() / blocks(prompts)
}

/// A block's tokens are its name's.
fn tokens(prompt: &Prompt) -> Vec<u64> {
    let block = |name: &u64| {
        let name = *name;
        (0..BLOCK).map(move |at| 10 + (name.wrapping_mul(2_654_435_761).wrapping_add(at * 97) >> 3) % 1500)
    };
    // What follows the last whole block, so that this one can be found.
    prompt.iter().flat_map(block).chain([3]).collect()
}

/// The first lines of `{"hash_ids": [...]}`, each id a block.
fn read(text: &str) -> Vec<Prompt> {
    let line = |line: &str| -> Prompt {
        let request: Value = serde_json::from_str(line).unwrap();
        let names = request["hash_ids"].as_array().unwrap().iter();
        names.filter_map(Value::as_u64).take(BLOCKS_MAX).collect()
    };
    text.lines().take(REQUESTS).map(line).collect()
}

/// Conversations that take turns, over a few system prompts; half of the requests come once and never again.
fn made() -> Vec<Prompt> {
    let mut state = 42_u64;
    let mut draw = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut name = 1000;
    let mut fresh = |count: u64| -> Prompt {
        name += count;
        (name - count..name).collect()
    };
    let systems: Vec<Prompt> = (0..6).map(|_| fresh(12)).collect();
    let mut talks: Vec<Prompt> = Vec::new();
    let mut prompts = Vec::new();
    while prompts.len() < REQUESTS {
        let prompt = match draw(4) {
            0 | 1 if talks.len() > 30 => {
                let talk = draw(talks.len() as u64) as usize;
                let more = fresh(2 + draw(5));
                talks[talk].extend(more);
                if talks[talk].len() > 90 { talks.swap_remove(talk) } else { talks[talk].clone() }
            }
            2 => fresh(4 + draw(12)),
            _ => {
                let mut talk = systems[draw(6) as usize].clone();
                talk.extend(fresh(2 + draw(6)));
                talks.push(talk.clone());
                talk
            }
        };
        prompts.push(prompt);
    }
    prompts
}
