//! Callers who name the target: served exactly there or told why not, on listeners that trust them.

use e2e::client::{Slot, Turn, send};
use e2e::{Client, Steering, World, WorldPlan, wait_for};
use routing::hash::{hashed_rank, rank_hash};
use routing::header::{TARGET_RANK, TARGET_WORKER, VLLM_RANK};
use serde_json::json;

use crate::support::{
    BOTH, asked, binding, bound_to, nothing_in_flight, served, state, three_engines, turn, unknown,
};

/// A trusted listener before three workers that nobody probes.
fn trusted(steering: Steering) -> WorldPlan {
    WorldPlan::new(steering, &three_engines()).probes_every_ms(0).edit(|config| config.trusted())
}

/// A chat turn that names what it is told to.
async fn named(client: &Client, session: Option<&str>, worker: Option<&str>, rank: Option<&str>) -> Turn {
    let mut request = client.chat_request(session, "named");
    for (header, value) in [(TARGET_WORKER, worker), (TARGET_RANK, rank)] {
        if let Some(value) = value {
            request = request.header(header, value);
        }
    }
    send(request).await.unwrap()
}

/// Asserts a refusal that tells neither session nor worker, and that no engine was asked.
async fn refused(world: &World, turn: &Turn, status: u16, told: &[&str]) {
    let text = String::from_utf8_lossy(&turn.body).into_owned();
    assert_eq!(turn.status, status, "{text}");
    assert!(turn.slot().is_none(), "an engine answered");
    for id in told {
        assert!(!text.contains(id), "the error names {id}: {text}");
    }
    for engine in &world.engines {
        assert_eq!(asked(world, engine.name()).await, 0, "{} was asked", engine.name());
    }
}

#[tokio::test]
async fn without_a_session_it_is_served_exactly_there() {
    for steering in BOTH {
        let world = trusted(steering).start().await.unwrap();
        let client = world.client();
        for (worker, rank) in [("w0", Some("3")), ("w1", Some("6")), ("w2", None), ("w1", None)] {
            for _ in 0..3 {
                let slot = served(&named(&client, None, Some(worker), rank).await);
                assert_eq!(slot.worker, worker, "{steering:?}");
                let seen = world.engine(worker).requests().await.unwrap().pop().unwrap();
                let wanted: Vec<&str> = rank.into_iter().collect();
                assert_eq!(seen.values(VLLM_RANK), wanted, "{steering:?}, {worker}");
            }
        }
    }
}

/// B6: the first turn names its slot, the others do not.
#[tokio::test]
async fn later_turns_stay_where_the_first_one_was_named() {
    for steering in BOTH {
        let world = trusted(steering).start().await.unwrap();
        let client = world.client();
        for (key, worker, rank) in
            [("b6-0", "w0", 0), ("b6-1", "w0", 3), ("b6-2", "w1", 4), ("b6-3", "w1", 7)]
        {
            let wanted = Slot { worker: worker.to_owned(), rank: Some(rank) };
            let first = named(&client, Some(key), Some(worker), Some(&rank.to_string())).await;
            assert_eq!(served(&first), wanted, "{steering:?}");
            for _ in 0..3 {
                assert_eq!(turn(&client, key).await, wanted, "{steering:?}: {key}");
            }
            let bound = binding(&world, key).await;
            assert_eq!((bound.worker.as_str(), bound.rank), (worker, Some(u64::from(rank))));
        }
        // A worker alone: its hashed rank, from then on.
        let rank = hashed_rank(rank_hash(b"worker-only"), 4, 4).map(|rank| rank.0);
        let wanted = Slot { worker: "w1".to_owned(), rank };
        assert_eq!(served(&named(&client, Some("worker-only"), Some("w1"), None).await), wanted);
        assert_eq!(turn(&client, "worker-only").await, wanted);
    }
}

#[tokio::test]
async fn who_names_another_slot_than_the_bound_one_is_told() {
    let steering = Steering::Endpoints;
    let world = trusted(steering).start().await.unwrap();
    let (key, home) = bound_to(&world, "w0").await;
    let before = binding(&world, &key).await;
    let client = world.client();
    world.forget().await.unwrap();
    let other_rank = ((home.rank.unwrap() + 1) % 4).to_string();
    for (worker, rank) in [("w1", None), ("w1", Some("5")), ("w2", None), ("w0", Some(other_rank.as_str()))] {
        let turn = named(&client, Some(&key), Some(worker), rank).await;
        refused(&world, &turn, 400, &[&key, "w0"]).await;
    }
    assert_eq!(binding(&world, &key).await, before, "{steering:?}");
    // Naming only the worker takes the bound rank; naming both is as good.
    let rank = home.rank.unwrap().to_string();
    for rank in [None, Some(rank.as_str())] {
        assert_eq!(served(&named(&client, Some(&key), Some("w0"), rank).await), home, "{steering:?}");
    }
    assert_eq!(binding(&world, &key).await, before, "{steering:?}");
    nothing_in_flight(&world).await;
}

#[tokio::test]
async fn what_cannot_be_served_is_refused_by_kind() {
    let steering = Steering::Cluster;
    let world = trusted(steering).start().await.unwrap();
    let client = world.client();
    for session in [None, Some("fresh")] {
        for (worker, rank, status) in [
            (Some("nobody"), None, 404),
            (Some("w0"), Some("4"), 400),
            (Some("w1"), Some("0"), 400),
            (Some("w0"), Some("x"), 400),
            (Some("w0"), Some("-1"), 400),
            (None, Some("0"), 400),
            (Some(""), Some("0"), 400),
        ] {
            let turn = named(&client, session, worker, rank).await;
            refused(&world, &turn, status, &["fresh"]).await;
        }
    }
    assert_eq!(world.service.session("fresh").await.unwrap().status, 404, "{steering:?}: it left something");
    nothing_in_flight(&world).await;
}

#[tokio::test]
async fn a_draining_worker_serves_those_it_has_and_refuses_others() {
    let steering = Steering::Endpoints;
    let world = trusted(steering).start().await.unwrap();
    let (key, home) = bound_to(&world, "w0").await;
    let said = world.service.call("POST", "/v1/workers/w0/drain", None).await.unwrap();
    assert_eq!(said.status, 200);
    state(&world, "w0", "draining").await;
    let client = world.client();
    wait_for("the filter to hear of the drain", async || {
        let turn = named(&client, None, Some("w0"), None).await;
        assert!([200, 503].contains(&turn.status), "{}", turn.status);
        (turn.status == 503).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(served(&named(&client, Some(&key), Some("w0"), None).await), home, "{steering:?}");
    world.forget().await.unwrap();
    let turn = named(&client, Some("new"), Some("w0"), None).await;
    refused(&world, &turn, 503, &["new"]).await;
}

/// Nobody has noticed yet that the worker is gone: 503, and no other worker is asked.
#[tokio::test]
async fn a_worker_that_is_gone_is_503_and_nobody_else_serves() {
    for (steering, policy) in [
        (Steering::Cluster, "direct"),
        (Steering::Endpoints, "direct"),
        (Steering::Endpoints, "least_loaded"),
    ] {
        let mut world = trusted(steering).policy(policy).cold().start().await.unwrap();
        named_until_served(&world).await;
        world.forget().await.unwrap();
        world.engines[0].kill();
        for session in [None, Some("gone")] {
            for _ in 0..4 {
                let turn = named(&world.client(), session, Some("w0"), None).await;
                assert_eq!((turn.status, turn.slot()), (503, None), "{steering:?}, {policy}");
            }
        }
        for other in ["w1", "w2"] {
            assert_eq!(asked(&world, other).await, 0, "{steering:?}, {policy}: {other} was asked");
        }
        unknown(&world, "gone").await;
    }
}

/// Until the filter knows its workers; a `direct` pool is warmed by name.
async fn named_until_served(world: &World) {
    for worker in ["w0", "w1", "w2"] {
        wait_for("a named worker to serve", async || {
            (named(&world.client(), None, Some(worker), None).await.status == 200).then_some(())
        })
        .await
        .unwrap();
    }
}

/// Busy is no reason to go elsewhere either: who named it hears it.
#[tokio::test]
async fn a_busy_worker_answers_for_itself() {
    for steering in BOTH {
        let world = trusted(steering).start().await.unwrap();
        world.engine("w0").fault("429=2", None).await.unwrap();
        for _ in 0..3 {
            let turn = named(&world.client(), None, Some("w0"), Some("1")).await;
            assert!([429, 503].contains(&turn.status), "{steering:?}: {}", turn.status);
        }
        for other in ["w1", "w2"] {
            assert_eq!(asked(&world, other).await, 0, "{steering:?}: {other} was asked");
        }
    }
}

/// A rank added to a binding that has none: the hashed one is what its turns carry anyway, another is not.
#[tokio::test]
async fn a_rank_for_a_binding_without_one() {
    let steering = Steering::Endpoints;
    let pool = json!({"affinity": "soft"});
    let world = trusted(steering).pool(pool).start().await.unwrap();
    let (key, home) = bound_to(&world, "w1").await;
    assert_eq!(binding(&world, &key).await.rank, None);
    let hashed = hashed_rank(rank_hash(key.as_bytes()), 4, 4).unwrap().0;
    let other = 4 + (hashed - 4 + 1) % 4;
    world.forget().await.unwrap();
    let client = world.client();
    let turn = named(&client, Some(&key), Some("w1"), Some(&other.to_string())).await;
    refused(&world, &turn, 400, &[&key]).await;
    let agreed = served(&named(&client, Some(&key), Some("w1"), Some(&hashed.to_string())).await);
    assert_eq!(agreed, Slot { worker: home.worker, rank: Some(hashed) }, "{steering:?}");
}

/// A pool whose callers must name the worker, until the session is bound.
#[tokio::test]
async fn a_direct_pool_wants_a_worker() {
    let steering = Steering::Cluster;
    let world = trusted(steering).policy("direct").cold().start().await.unwrap();
    named_until_served(&world).await;
    world.forget().await.unwrap();
    let client = world.client();
    for session in [None, Some("lost")] {
        let turn = named(&client, session, None, None).await;
        refused(&world, &turn, 400, &["lost"]).await;
        let text = String::from_utf8_lossy(&turn.body).into_owned();
        assert!(text.contains("worker id required"), "{text}");
    }
    let first = served(&named(&client, Some("led"), Some("w1"), Some("5")).await);
    assert_eq!(first, Slot { worker: "w1".to_owned(), rank: Some(5) });
    assert_eq!(turn(&client, "led").await, first, "{steering:?}: the bound session goes on by itself");
    assert_eq!(world.service.session("lost").await.unwrap().status, 404);
    // Its slot gone, it is not placed anywhere: its caller is asked.
    world.service.remove("w1").await.unwrap();
    wait_for("the session to want a worker", async || {
        let turn = client.chat(Some("led"), "x").await.unwrap();
        assert!([200, 400, 503].contains(&turn.status), "{steering:?}: {}", turn.status);
        assert!(turn.slot().is_none_or(|slot| slot.worker == "w1"), "it was placed elsewhere");
        (turn.status == 400).then_some(())
    })
    .await
    .unwrap();
}
