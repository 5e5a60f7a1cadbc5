//! The service is killed and started at once: what it wrote down and what Envoys know is enough to keep everybody in place.

use e2e::client::Slot;
use e2e::{Client, EngineSpec, Steering, World, WorldPlan, wait_for};

#[tokio::test]
async fn a_restart_keeps_workers_and_bound_sessions() {
    for steering in [Steering::Cluster, Steering::Endpoints] {
        let engines = [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).from(4), EngineSpec::new("w2", 1)];
        let mut world = WorldPlan::new(steering, &engines).start().await.unwrap();
        let client = Client::fresh_connections(world.envoy().address()).unwrap();
        let mut bound = Vec::new();
        for n in 0..20 {
            let key = format!("bound-{n}");
            bound.push((client.chat(Some(&key), "hello").await.unwrap().slot().unwrap(), key));
        }
        world.service.restart().await.unwrap();
        assert_eq!(
            world.service.topology("nobody").await.unwrap(),
            world.names(),
            "declared workers are forgotten"
        );
        // Turns before the filter hears of the new life, those that teach the service, and after.
        for round in 0..3 {
            for (slot, key) in &bound {
                let turn = client.chat(Some(key), "again").await.unwrap();
                assert_eq!(
                    turn.slot().as_ref(),
                    Some(slot),
                    "{steering:?}, {key}, round {round}: {}",
                    turn.status
                );
            }
            if round == 0 {
                relearned(&world, &client, &bound[0]).await;
            }
        }
    }
}

/// Turns of a session until the restarted service knows it again.
async fn relearned(world: &World, client: &Client, (slot, key): &(Slot, String)) {
    wait_for("the session to be known again", async || {
        assert_eq!(client.chat(Some(key), "again").await.unwrap().slot().as_ref(), Some(slot));
        (world.service.session(key).await.ok()?.body["state"] == "bound").then_some(())
    })
    .await
    .unwrap();
}
