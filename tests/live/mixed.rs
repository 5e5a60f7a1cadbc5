//! Features that meet: a split fleet whose sessions are named in bodies, a prefill slot that is overloaded, engines that say they are
//! busy before pools that refuse or wait, and clients that leave at every stage of all that.

use std::collections::BTreeSet;

use e2e::client::{CHAT, SESSION, Slot, Turn, send};
use e2e::raw::{Raw, request};
use e2e::{Client, EngineSpec, Steering, World, WorldPlan, wait_for};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{
    bound_to, comes_home, gauges, nothing_in_flight, says_nothing_of, served, turn, unprobed, vms,
};

fn split() -> [EngineSpec; 4] {
    [
        EngineSpec::new("p0", 4).prefills(),
        EngineSpec::new("p1", 4).from(4).prefills(),
        EngineSpec::new("d0", 4).decodes(),
        EngineSpec::new("d1", 4).from(4).decodes(),
    ]
}

/// A split fleet behind a listener that reads bodies; all four have had work.
async fn split_world(pool: Value) -> World {
    // Probed as good as never, and scraped: workers that nobody probes are not.
    let plan = WorldPlan::new(Steering::Agents, &split()).probes_every_ms(60_000).cold().pool(pool);
    let world = plan.start().await.unwrap();
    let (mut n, mut seen) = (0, BTreeSet::new());
    wait_for("work for both halves of the fleet", async || {
        n += 1;
        let turn = in_body(&world.client(), &format!("known-{n}")).await;
        if let Some(prefilled) = turn.prefilled() {
            seen.extend([served(&turn).worker, prefilled.worker]);
        }
        (seen.len() == 4).then_some(())
    })
    .await
    .unwrap();
    world.forget().await.unwrap();
    world
}

/// A turn that names its session in the body.
async fn in_body(client: &Client, key: &str) -> Turn {
    let body = json!({"model": "tiny", "max_tokens": 1, "prompt_cache_key": key,
        "messages": [{"role": "user", "content": "hi"}]});
    send(client.request(Method::POST, CHAT).json(&body)).await.unwrap()
}

async fn halves(client: &Client, key: &str) -> (Slot, Slot) {
    let turn = in_body(client, key).await;
    (served(&turn), turn.prefilled().expect("nobody prefilled"))
}

#[tokio::test]
async fn keys_in_bodies_keep_both_halves() {
    let world = split_world(json!({})).await;
    let client = Client::fresh_connections(world.envoy().address()).unwrap();
    let mut used = BTreeSet::new();
    for n in 0..20 {
        let key = format!("both-{n}");
        let first = halves(&client, &key).await;
        for _ in 0..3 {
            assert_eq!(halves(&client, &key).await, first, "{key}");
        }
        // The same key in a header is the same session.
        let by_header = client.chat(Some(&key), "hi").await.unwrap();
        assert_eq!((served(&by_header), by_header.prefilled()), (first.0.clone(), Some(first.1.clone())));
        used.insert(first);
    }
    assert!(used.len() > 3, "all on {used:?}");
    nothing_in_flight(&world).await;
}

/// A prefill slot whose cache is full: that half goes elsewhere and comes home, the other stays.
#[tokio::test]
async fn an_overloaded_prefill_slot_spills_alone() {
    let world = split_world(json!({})).await;
    let client = world.client();
    let mut n = 0;
    let (key, (decode, prefill)) = loop {
        n += 1;
        let key = format!("pressed-{n}");
        let slots = halves(&client, &key).await;
        if slots.1.worker == "p0" {
            break (key, slots);
        }
    };
    world.engine("p0").gauges(prefill.rank, json!({"kv_usage": 0.99})).await.unwrap();
    wait_for("the prefill half to be spilled", async || {
        let (serving, elsewhere) = halves(&client, &key).await;
        assert_eq!(serving, decode, "the half that answers moved");
        (elsewhere.worker == "p1").then_some(())
    })
    .await
    .unwrap();
    world.engine("p0").tell_the_truth().await.unwrap();
    wait_for("the prefill half at home", async || {
        (halves(&client, &key).await == (decode.clone(), prefill.clone())).then_some(())
    })
    .await
    .unwrap();
    nothing_in_flight(&world).await;
}

/// An engine says that it is busy, and its pool refuses rather than spilling: the next turn is told so without asking it again.
#[tokio::test]
async fn a_busy_engine_before_a_pool_that_refuses() {
    for steering in [Steering::Cluster, Steering::Endpoints] {
        let world =
            unprobed(steering).threads(1).pool(json!({"on_overload": "refuse"})).start().await.unwrap();
        let (key, home) = bound_to(&world, "w0").await;
        world.engine("w0").fault("429=8", None).await.unwrap();
        let client = world.client();
        let first = client.chat(Some(&key), "now?").await.unwrap();
        assert!(
            first.status == 429 || first.slot().is_some_and(|slot| slot.worker != "w0"),
            "{}",
            first.status
        );
        world.forget().await.unwrap();
        let second = client.chat(Some(&key), "now?").await.unwrap();
        assert_eq!(second.status, 429, "{steering:?}");
        let seconds: u32 = second.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=8).contains(&seconds), "{steering:?}: {seconds}");
        says_nothing_of(&second, &[&key, "w0", "w1", "w2"]);
        assert!(world.engine("w0").requests().await.unwrap().is_empty(), "{steering:?}: it was asked again");
        world.engine("w0").heal().await.unwrap();
        wait_for("the session to be served", async || {
            let turn = client.chat(Some(&key), "now?").await.unwrap();
            (turn.status == 200).then_some(())
        })
        .await
        .unwrap();
        comes_home(&world, &key, &home).await;
        nothing_in_flight(&world).await;
    }
}

const LANES: usize = 24;
const ABORTS_A_LANE: usize = 50;

/// Clients that go away while their body is awaited, while their slot is asked for, while somebody prefills, and while the answer comes.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_at_every_stage() {
    let pool = json!({"in_flight_limit": 6, "on_overload": "wait", "wait_ms": 400});
    let world = split_world(pool).await;
    for name in ["d0", "d1"] {
        world.engine(name).fault("slow=30", None).await.unwrap();
    }
    let (home, alive) = (turn(&world.client(), "stays").await, vms(&world).await);
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        let to = world.envoy().address();
        lanes.spawn(async move {
            for n in 0..ABORTS_A_LANE {
                leave(to, lane * ABORTS_A_LANE + n).await;
            }
        });
    }
    lanes.join_all().await;
    for name in ["d0", "d1"] {
        world.engine(name).heal().await.unwrap();
    }
    gauges(&world, 0, 0).await;
    nothing_in_flight(&world).await;
    wait_for("nobody to wait", async || {
        (world.service.metric("rankpin_waiting", &[]).await.ok()? == 0.0).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(vms(&world).await, alive, "a VM died");
    comes_home(&world, "stays", &home).await;
}

/// One of them; which stage it is at when it goes, nobody knows exactly.
async fn leave(to: std::net::SocketAddr, n: usize) {
    let key = format!("leaves-{}", n % 41);
    let (header, field) = match n % 3 {
        0 => (format!("\n{SESSION}: {key}"), String::new()),
        1 => (String::new(), format!(r#","prompt_cache_key":"{key}""#)),
        _ => (String::new(), String::new()),
    };
    let body = format!(
        r#"{{"model":"tiny","stream":true,"max_tokens":8,"messages":[{{"role":"user","content":"x"}}]{field}}}"#
    );
    let head = format!("POST {CHAT} HTTP/1.1{header}\ncontent-type: application/json");
    let bytes = request(&head, body.as_bytes());
    let mut client = Raw::connect(to).await.unwrap();
    let sent = if n.is_multiple_of(5) { bytes.len() - 20 } else { bytes.len() };
    client.send(&bytes[..sent]).await.unwrap();
    if n % 5 == 1 {
        client.read_until("\r\n\r\n").await.unwrap();
    }
    for _ in 0..n % 7 {
        tokio::task::yield_now().await;
    }
    if n.is_multiple_of(2) {
        client.reset().unwrap();
    }
}
