//! Worlds of a `kv_aware` pool, and turns in them: what was said of a prompt's blocks beside what the engine had.

use std::fmt::Write as _;

use e2e::client::{CHAT, MODEL, SESSION, Slot, Turn, send};
use e2e::{EngineSpec, Steering, World, WorldPlan, artifacts, sse, wait_for};
use serde_json::{Value, json};

/// Tokens of a block.
pub(super) const BLOCK: u64 = 16;
/// The filter's longest: no test depends on the machine's speed.
const PROMPT_DEADLINE_MS: u64 = 10_000;

/// Engines of so many ranks that publish, behind `envoy/kv.yaml`.
pub(super) fn plan(engines: u32, ranks: u32, more: &[&str]) -> WorldPlan {
    let spec = |n| EngineSpec::new(&format!("w{n}"), ranks).kv_events().with(more);
    plan_of(&(0..engines).map(spec).collect::<Vec<_>>())
}

/// These engines behind it.
pub(super) fn plan_of(specs: &[EngineSpec]) -> WorldPlan {
    let model = artifacts::root().join("tests/engine/model");
    let tokens = json!({"mode": "local", "path": model});
    WorldPlan::new(Steering::Kv, specs).pool(json!({"policy": "kv_aware", "tokens": tokens})).edit(|config| {
        config.served_header()?;
        config.plugin(|own| own["service"]["route_prompt_deadline_ms"] = json!(PROMPT_DEADLINE_MS))
    })
}

/// Starts it; every rank is listened to, and the engines' models are known.
pub(super) async fn start(plan: WorldPlan) -> World {
    let world = plan.start().await.unwrap();
    wait_for("the workers' models", async || {
        let said = world.service.call("GET", "/v1/pools", None).await.ok()?;
        (said.body["pools"][0]["tokens"]["listed"]["models"] == json!([MODEL])).then_some(())
    })
    .await
    .unwrap();
    for engine in &world.engines {
        for rank in engine.kv_events().await.unwrap() {
            let what = format!("{}/{} to be listened to", engine.name(), rank.rank);
            wait_for(&what, async || {
                (events(&world, engine.name(), Some(rank.rank)).await["link"] == "up").then_some(())
            })
            .await
            .unwrap();
        }
    }
    world
}

/// What the service says of a rank's events.
pub(super) async fn events(world: &World, worker: &str, rank: Option<u32>) -> Value {
    let said = world.service.call("GET", &format!("/v1/workers/{worker}"), None).await.unwrap();
    let slots = said.body["slots"].as_array().cloned().unwrap_or_default();
    let slot = slots.into_iter().find(|slot| slot["rank"].is_null() || slot["rank"] == json!(rank));
    slot.map_or(Value::Null, |slot| slot["kv_events"].clone())
}

/// Until the service has applied all that a slot's publisher has published so far.
pub(super) async fn heard(world: &World, slot: &Slot) {
    let ranks = world.engine(&slot.worker).kv_events().await.unwrap();
    let rank = ranks.iter().find(|one| slot.rank.is_none_or(|rank| rank == one.rank)).unwrap();
    let next = rank.next_seq;
    wait_for(&format!("{slot}: batch {next} is next"), async || {
        let last = events(world, &slot.worker, Some(rank.rank)).await["last_seq"].as_u64();
        (last.map_or(0, |last| last + 1) >= next).then_some(())
    })
    .await
    .unwrap();
}

/// The same of all slots.
pub(super) async fn all_heard(world: &World) {
    for engine in &world.engines {
        for rank in engine.kv_events().await.unwrap() {
            heard(world, &Slot { worker: engine.name().to_owned(), rank: Some(rank.rank) }).await;
        }
    }
}

/// Until the service has heard of the end of every request: what still counts as load is weighed against what is cached.
pub(super) async fn idle(world: &World) {
    idle_but(world, None).await;
}

/// The same of all slots but one, of which an engine says that it is busy.
pub(super) async fn idle_but(world: &World, busy: Option<&Slot>) {
    for engine in &world.engines {
        let path = format!("/v1/workers/{}", engine.name());
        let busy = busy.filter(|slot| slot.worker == engine.name()).map(|slot| json!(slot.rank));
        wait_for(&format!("{} to be idle", engine.name()), async || {
            let said = world.service.call("GET", &path, None).await.ok()?;
            let mut slots = said.body["slots"].as_array()?.iter();
            slots.all(|slot| slot["load"] == 0 || Some(&slot["rank"]) == busy.as_ref()).then_some(())
        })
        .await
        .unwrap();
    }
}

/// Words that are like no others of another seed.
pub(super) fn words(seed: u32, count: u32) -> String {
    const WORDS: [&str; 16] = [
        "boat", "market", "stone", "water", "lamp", "letter", "morning", "window", "harbour", "paper",
        "river", "bread", "winter", "garden", "train", "hand",
    ];
    let mut text = String::new();
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    for _ in 0..count {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let _ = write!(text, "{} ", WORDS[(state >> 8) as usize % WORDS.len()]);
    }
    text
}

/// A request of one of the two shapes.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) path: &'static str,
    pub(super) body: Value,
    pub(super) session: Option<String>,
}

impl Ask {
    pub(super) fn chat(messages: &Value) -> Self {
        let body = json!({"model": MODEL, "messages": messages, "max_tokens": 24});
        Self { path: CHAT, body, session: None }
    }

    /// A text, or tokens.
    pub(super) fn completion(prompt: &Value) -> Self {
        let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 24});
        Self { path: "/v1/completions", body, session: None }
    }

    pub(super) fn session(mut self, key: &str) -> Self {
        self.session = Some(key.to_owned());
        self
    }

    pub(super) fn with(mut self, field: &str, value: Value) -> Self {
        self.body[field] = value;
        self
    }

    pub(super) fn streamed(self) -> Self {
        self.with("stream", json!(true)).with("stream_options", json!({"include_usage": true}))
    }

    /// Sends it through the first Envoy.
    pub(super) async fn send(&self, world: &World) -> Answer {
        let request = world.client().post(self.path, None, &self.body);
        let request = match &self.session {
            Some(key) => request.header(SESSION, key),
            None => request,
        };
        Answer::of(&send(request).await.unwrap())
    }
}

/// What came of one request.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) slot: Slot,
    /// Why there, in the filter's word.
    pub(super) reason: String,
    /// Blocks said to be cached there, of so many; none where nothing was said.
    pub(super) said: Option<(u64, u64)>,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) text: String,
}

impl Answer {
    pub(super) fn of(turn: &Turn) -> Self {
        assert_eq!(turn.status, 200, "{}", String::from_utf8_lossy(&turn.body));
        let served = turn.header("x-rankpin-served").unwrap_or_default().to_owned();
        let field =
            |name: &str| served.split(';').find_map(|part| part.strip_prefix(name)).map(str::to_owned);
        let said = field("blocks=").and_then(|text| {
            let (blocks, of) = text.split_once('/')?;
            Some((blocks.parse().ok()?, of.parse().ok()?))
        });
        let pieces: Vec<Value> = match turn.json() {
            Value::Null => {
                sse::payloads(&turn.body).iter().filter_map(|one| serde_json::from_str(one).ok()).collect()
            }
            whole => vec![whole],
        };
        let usage = pieces.iter().rev().find(|piece| piece["usage"].is_object()).map(|piece| &piece["usage"]);
        let usage = usage.unwrap_or_else(|| panic!("no usage in {pieces:?}"));
        let texts = pieces.iter().map(|piece| {
            let choice = &piece["choices"][0];
            let text = choice["text"].as_str().or(choice["message"]["content"].as_str());
            text.or(choice["delta"]["content"].as_str()).unwrap_or_default()
        });
        Self {
            slot: turn.slot().unwrap(),
            reason: field("reason=").unwrap_or_default(),
            said,
            prompt_tokens: usage["prompt_tokens"].as_u64().unwrap(),
            cached_tokens: usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0),
            text: texts.collect(),
        }
    }

    /// Whether the engine found just what was said; nothing said is nothing found.
    pub(super) fn is_as_said(&self) -> bool {
        let (blocks, of) = self.said.unwrap_or((0, self.prompt_tokens / BLOCK));
        self.cached_tokens == blocks * BLOCK && of == self.prompt_tokens / BLOCK
    }
}
