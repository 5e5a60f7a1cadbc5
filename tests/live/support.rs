//! What several themes need: a world of scripted workers, ready to place sessions on each of them.

use std::sync::Arc;

use e2e::client::{CHAT, SESSION};
use e2e::raw::exchange;
use e2e::{Scripted, Steering, World, WorldPlan, wait_for};
use serde_json::json;
use tokio::task::JoinSet;

/// Scripted workers, listening.
pub(crate) async fn scripted_workers(count: usize) -> Vec<Arc<Scripted>> {
    let mut workers = Vec::new();
    for _ in 0..count {
        workers.push(Arc::new(Scripted::start().await.unwrap()));
    }
    workers
}

/// One Envoy before scripted workers s0, s1, … of eight ranks each, which nobody probes; every one of them is known.
pub(crate) async fn scripted_world(steering: Steering, workers: &[Arc<Scripted>]) -> World {
    let named: Vec<_> =
        workers.iter().enumerate().map(|(n, worker)| (format!("s{n}"), worker.address())).collect();
    let plan = WorldPlan::new(steering, &[]).probes_every_ms(0).cold();
    let clusters = named.clone();
    let world = plan.edit(move |config| config.workers(&clusters)).start().await.unwrap();
    for (id, address) in &named {
        let declaration = json!({"endpoints": [{"address": address.to_string(), "dp_size": 8}]}).to_string();
        let said = world.service.call("PUT", &format!("/v1/workers/{id}"), Some(&declaration)).await.unwrap();
        assert_eq!(said.status, 201, "{said:?}");
    }
    warm(&world, workers).await;
    world
}

/// New sessions until each worker was pinned to by the filter, not found by Envoy's default route.
async fn warm(world: &World, workers: &[Arc<Scripted>]) {
    // Ends with the function: then every byte is the test's again.
    let mut serving = JoinSet::new();
    for worker in workers {
        let worker = Arc::clone(worker);
        serving.spawn(async move { worker.serve().await });
    }
    let (mut n, mut known) = (0, vec![false; workers.len()]);
    wait_for("sessions on every scripted worker", async || {
        n += 1;
        let head = format!("POST {CHAT} HTTP/1.1\n{SESSION}: warm-{n}\ncontent-type: application/json");
        let before: Vec<usize> = workers.iter().map(|worker| worker.served()).collect();
        let placed = world.envoy().requests("routed_held").await.ok()?;
        exchange(world.envoy().address(), &head, b"{}").await.ok()?;
        if world.envoy().requests("routed_held").await.ok()? > placed {
            workers.iter().enumerate().for_each(|(at, worker)| known[at] |= worker.served() > before[at]);
        }
        known.iter().all(|known| *known).then_some(())
    })
    .await
    .unwrap();
}
