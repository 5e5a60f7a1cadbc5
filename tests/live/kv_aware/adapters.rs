//! LoRA adapters: the same prompt is cached once a model, and is looked up where its own model's blocks are.

use super::fleet::{Ask, BLOCK, heard, idle, plan, plan_of, start, words};
use e2e::client::MODEL;
use e2e::{EngineSpec, World, WorldPlan};
use serde_json::json;

const ADAPTER: &str = "adapter-a";

/// One prompt: of the base model, of the adapter, and of either again.
async fn each_model_has_its_own(world: &World) {
    let prompt = json!([{"role": "user", "content": words(7, 200)}]);
    let ask = async |model: &str| {
        let answer = Ask::chat(&prompt).with("model", json!(model)).send(world).await;
        heard(world, &answer.slot).await;
        idle(world).await;
        answer
    };
    let (base, adapter) = (ask(MODEL).await, ask(ADAPTER).await);
    for cold in [&base, &adapter] {
        assert!(cold.cached_tokens == 0 && cold.is_as_said(), "{cold:?}");
    }
    let again = [(ask(MODEL).await, base.slot), (ask(ADAPTER).await, adapter.slot)];
    for (warm, slot) in &again {
        assert!(warm.cached_tokens >= 8 * BLOCK && warm.is_as_said() && warm.slot == *slot, "{warm:?}");
    }
}

async fn run(plan: WorldPlan) -> World {
    let world = start(plan).await;
    each_model_has_its_own(&world).await;
    world
}

/// Nothing is declared but where the engines are: they list their adapters.
#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_that_its_engine_lists_is_looked_up_among_its_own_blocks() {
    run(plan(2, 2, &["--lora", ADAPTER])).await;
}

/// The adapter is one of the worker's `models`.
#[tokio::test(flavor = "multi_thread")]
async fn so_is_one_that_is_declared_as_a_model() {
    let spec = |n| EngineSpec::new(&format!("w{n}"), 2).kv_events().with(&["--lora", ADAPTER]);
    let declared = |n| spec(n).declaring("models", json!([MODEL, ADAPTER]));
    run(plan_of(&[declared(0), declared(1)])).await;
}
