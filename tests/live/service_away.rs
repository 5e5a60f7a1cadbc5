//! The service is gone: what is bound stays, what is new is placed by every Envoy in the same place, and no request fails.

use e2e::client::Slot;
use e2e::{Client, EngineSpec, Steering, World, WorldPlan, wait_for};

#[tokio::test]
async fn bound_sessions_stay_and_new_ones_are_placed_alike() {
    for steering in [Steering::Cluster, Steering::Endpoints] {
        let engines = [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).from(4), EngineSpec::new("w2", 1)];
        let mut world = WorldPlan::new(steering, &engines).envoys(2).start().await.unwrap();
        let [one, two] = [0, 1].map(|n| Client::fresh_connections(world.envoys[n].address()).unwrap());
        let mut bound = Vec::new();
        for n in 0..10 {
            let key = format!("bound-{n}");
            bound.push((one.chat(Some(&key), "hello").await.unwrap().slot().unwrap(), key));
        }
        world.service.kill();
        for (slot, key) in &bound {
            assert_eq!(
                one.chat(Some(key), "again").await.unwrap().slot().as_ref(),
                Some(slot),
                "{steering:?}, {key}"
            );
        }
        for n in 0..20 {
            let key = format!("new-{n}");
            let (a, b) = (one.chat(Some(&key), "x").await.unwrap(), two.chat(Some(&key), "x").await.unwrap());
            assert_eq!((a.status, b.status), (200, 200));
            assert_eq!(a.slot(), b.slot(), "{steering:?}: two Envoys placed {key} apart");
        }
        let alone = world.envoys[0].requests("placed_alone").await.unwrap();
        assert!(alone >= 20, "only {alone} requests were placed without the service");
    }
}

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
