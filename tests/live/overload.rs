//! Slots that are overloaded: by requests in flight, or by what their engine's own gauges say. What becomes of bound turns, of new
//! sessions, and of everybody when all slots are.

use e2e::client::{Slot, Turn};
use e2e::raw::Raw;
use e2e::{Bootstrap, Client, EngineSpec, Steering, World, WorldPlan, wait_for};
use serde_json::{Value, json};

use crate::support::{
    BOTH, binding, bound_to, comes_home, in_flight, nothing_in_flight, says_nothing_of, served, stream,
    streamed_by, turn,
};

/// Two workers of four ranks whose long answers are long, behind one thread.
pub(crate) async fn world(steering: Steering, pool: Value) -> World {
    world_with(steering, pool, |_| Ok(())).await
}

/// The same with a config changed.
pub(crate) async fn world_with(
    steering: Steering,
    pool: Value,
    edit: impl FnOnce(&mut Bootstrap) -> anyhow::Result<()> + Send + 'static,
) -> World {
    let slow = ["--decode-us-per-token", "20000"];
    let engines = [EngineSpec::new("w0", 4).with(&slow), EngineSpec::new("w1", 4).from(4).with(&slow)];
    // Probed as good as never, and scraped: workers that nobody probes are not.
    let plan = WorldPlan::new(steering, &engines).probes_every_ms(60_000).threads(1).pool(pool);
    plan.edit(edit).start().await.unwrap()
}

/// Streams of a session until its slot has so many in flight, and the service says that it is overloaded.
pub(crate) async fn overload(world: &World, key: &str, home: &Slot, count: u64) -> Vec<Raw> {
    let mut open = Vec::new();
    for n in 0..count {
        let opened = stream(world, 0, Some(key)).await;
        assert_eq!(streamed_by(&opened), home.worker, "it left before its slot was full");
        open.push(opened);
        in_flight(world, &home.worker, n + 1).await;
    }
    overloaded(world, home, true).await;
    open
}

/// Until the service says that of the slot.
pub(crate) async fn overloaded(world: &World, slot: &Slot, wanted: bool) {
    wait_for(&format!("{slot} overloaded: {wanted}"), async || {
        let said = world.service.call("GET", &format!("/v1/workers/{}", slot.worker), None).await.ok()?;
        let slots = said.body["slots"].as_array()?.clone();
        let own = slots.into_iter().find(|one| one["rank"].as_u64() == slot.rank.map(u64::from))?;
        (own["overloaded"] == wanted).then_some(())
    })
    .await
    .unwrap();
}

/// Until a turn of the session is answered as wanted: the filter hears of the fleet a moment after the service.
pub(crate) async fn answered(client: &Client, key: &str, what: &str, wanted: impl Fn(&Turn) -> bool) -> Turn {
    wait_for(what, async || {
        let turn = client.chat(Some(key), "go on").await.unwrap();
        wanted(&turn).then_some(turn)
    })
    .await
    .unwrap()
}

async fn count(world: &World, word: &str) -> u64 {
    world.envoy().requests(word).await.unwrap()
}

/// C4: served elsewhere while its slot is full, home again afterwards; nobody else's rank is shut by it.
#[tokio::test]
async fn spill_returns_home() {
    for steering in BOTH {
        let world = world(steering, json!({"in_flight_limit": 2})).await;
        let (key, home) = bound_to(&world, "w0").await;
        let (beside, other) = other_rank(&world, &home).await;
        let before = binding(&world, &key).await;
        let open = overload(&world, &key, &home, 2).await;
        let client = world.client();
        answered(&client, &key, "a spilled turn", |turn| served(turn).worker != home.worker).await;
        let spilled = count(&world, "spilled").await;
        for _ in 0..3 {
            assert_ne!(turn(&client, &key).await, home, "{steering:?}: the full slot was asked");
            assert_eq!(turn(&client, &beside).await, other, "{steering:?}: one full rank shut its worker");
        }
        assert_eq!(count(&world, "spilled").await, spilled + 3, "{steering:?}");
        drop(open);
        comes_home(&world, &key, &home).await;
        assert_eq!(binding(&world, &key).await, before, "{steering:?}: the binding moved");
        nothing_in_flight(&world).await;
    }
}

/// A session of the same worker on another rank.
async fn other_rank(world: &World, than: &Slot) -> (String, Slot) {
    loop {
        let (key, slot) = bound_to(world, &than.worker).await;
        if slot.rank != than.rank {
            return (key, slot);
        }
    }
}

/// The client is told when to come again, and nothing about who is where; the binding stays.
#[tokio::test]
async fn refuse_is_429_with_retry_after() {
    for steering in BOTH {
        let world = world(steering, json!({"in_flight_limit": 2, "on_overload": "refuse"})).await;
        let (key, home) = bound_to(&world, "w0").await;
        let before = binding(&world, &key).await;
        let open = overload(&world, &key, &home, 2).await;
        let client = world.client();
        let refused = answered(&client, &key, "a refusal", |turn| turn.status == 429).await;
        let seconds: u32 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=10).contains(&seconds), "{seconds}");
        assert!(refused.json()["error"]["code"].is_string(), "{:?}", refused.json());
        says_nothing_of(&refused, &[&key, "w0", "w1"]);
        assert!(count(&world, "overload_refused").await > 0);
        // Others are served.
        let elsewhere = turn(&client, "somebody-new").await;
        assert_ne!(elsewhere, home, "{steering:?}: a new session was put on the full slot");
        drop(open);
        comes_back(&world, &key, &home).await;
        assert_eq!(binding(&world, &key).await, before, "{steering:?}");
        nothing_in_flight(&world).await;
    }
}

/// Refusals until the slot is heard to be well; then home.
async fn comes_back(world: &World, key: &str, home: &Slot) {
    let client = world.client();
    let turn = answered(&client, key, "an answer", |turn| turn.status == 200).await;
    assert_eq!(served(&turn), *home);
}

/// Every slot of the fleet is full by its engine's own word.
async fn all_full(world: &World, full: bool) {
    for engine in &world.engines {
        match full {
            true => engine.gauges(None, json!({"kv_usage": 0.99})).await.unwrap(),
            false => engine.tell_the_truth().await.unwrap(),
        }
    }
    for (worker, first) in [("w0", 0), ("w1", 4)] {
        for rank in first..first + 4 {
            overloaded(world, &Slot { worker: worker.to_owned(), rank: Some(rank) }, full).await;
        }
    }
}

/// When every slot is overloaded: served all the same, bound sessions at home.
#[tokio::test]
async fn all_overloaded_and_served() {
    let world = world(Steering::Endpoints, json!({})).await;
    let (key, home) = bound_to(&world, "w0").await;
    all_full(&world, true).await;
    let client = world.client();
    for n in 0..12 {
        assert_eq!(turn(&client, &key).await, home, "the binding is as good as any");
        turn(&client, &format!("new-{n}")).await;
        served(&client.chat(None, "no key").await.unwrap());
    }
    assert_eq!(count(&world, "overload_refused").await, 0);
}

/// Or refused, all of them, while that lasts.
#[tokio::test]
async fn all_overloaded_and_refused() {
    for steering in BOTH {
        let world = world(steering, json!({"on_all_overloaded": "refuse"})).await;
        let (key, home) = bound_to(&world, "w0").await;
        all_full(&world, true).await;
        let client = world.client();
        answered(&client, &key, "a refusal", |turn| turn.status == 429).await;
        let refused = [
            client.chat(Some(&key), "bound").await.unwrap(),
            client.chat(Some("new"), "new").await.unwrap(),
            client.chat(None, "no key").await.unwrap(),
        ];
        for turn in refused {
            assert_eq!(turn.status, 429, "{steering:?}");
            assert!(turn.header("retry-after").is_some());
            says_nothing_of(&turn, &[&key, "w0", "w1"]);
        }
        assert_eq!(world.service.session("new").await.unwrap().status, 404, "a refusal left a session");
        all_full(&world, false).await;
        // Slots clear one after the other: while its own has not, the session is as welcome elsewhere.
        let at_home = |turn: &Turn| turn.status == 200 && served(turn) == home;
        answered(&client, &key, "a turn at home", at_home).await;
        comes_home(&world, &key, &home).await;
        nothing_in_flight(&world).await;
    }
}

/// B9: series of each rank are that rank's, neither lost nor added up. A full cache on one rank sends its sessions away and nobody
/// else's; requests that wait in an engine send new sessions elsewhere.
#[tokio::test]
async fn scraped_gauges_steer_rank_by_rank() {
    let world = world(Steering::Endpoints, json!({})).await;
    let (key, home) = bound_to(&world, "w1").await;
    let (beside, other) = other_rank(&world, &home).await;
    world.engine("w1").gauges(home.rank, json!({"kv_usage": 0.97})).await.unwrap();
    overloaded(&world, &home, true).await;
    overloaded(&world, &other, false).await;
    let client = world.client();
    answered(&client, &key, "a spilled turn", |turn| served(turn).worker != home.worker).await;
    assert_eq!(turn(&client, &beside).await, other, "the rank beside it was shut");
    world.engine("w1").tell_the_truth().await.unwrap();
    comes_home(&world, &key, &home).await;

    for rank in 0..4 {
        world.engine("w0").gauges(Some(rank), json!({"waiting": 10 + rank})).await.unwrap();
    }
    wait_for("each rank's own figure", async || {
        let said = world.service.call("GET", "/v1/workers/w0", None).await.ok()?;
        let waiting = |slot: &Value| Some((slot["rank"].as_u64()?, slot["waiting"].as_u64()?));
        let by_rank: Vec<_> = said.body["slots"].as_array()?.iter().filter_map(waiting).collect();
        (by_rank == [(0, 10), (1, 11), (2, 12), (3, 13)]).then_some(())
    })
    .await
    .unwrap();
    let mut n = 0;
    wait_for("new sessions to stay away from requests that wait", async || {
        for _ in 0..16 {
            n += 1;
            if turn(&client, &format!("late-{n}")).await.worker == "w0" {
                return None;
            }
        }
        Some(())
    })
    .await
    .unwrap();
}
