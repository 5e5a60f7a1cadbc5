//! What trusted callers may demand of the worker without naming one: endpoints of a list, labels; and to be told what would be done.

use std::collections::BTreeSet;

use e2e::client::{Turn, send};
use e2e::{EngineSpec, Steering, World, WorldPlan, wait_for};
use routing::header::{DRY_RUN, PREFER, REQUIRE, SUBSET};
use serde_json::{Value, json};

use crate::support::{BOTH, asked, binding, bound_to, nothing_in_flight, says_nothing_of, served, turn};

/// Three workers, two of them labelled, on a listener of trusted callers.
async fn world(steering: Steering, pool: Value) -> World {
    let engines = [
        EngineSpec::new("w0", 4).declaring("labels", json!({"gpu": "h100", "zone": "a"})),
        EngineSpec::new("w1", 4).from(4).declaring("labels", json!({"gpu": "l4", "zone": "a"})),
        EngineSpec::new("w2", 1),
    ];
    let plan = WorldPlan::new(steering, &engines).probes_every_ms(0).pool(pool);
    plan.edit(|config| config.trusted()).start().await.unwrap()
}

async fn with(world: &World, key: Option<&str>, headers: &[(&str, &str)]) -> Turn {
    let mut request = world.client().chat_request(key, "hi");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(request).await.unwrap()
}

/// That these workers, each of them and nobody else, serve who demands this: of twenty requests, and of as many more as it takes
/// until each did. One that has a ninth of the ranks may well serve none of twenty; none of two thousand is not chance.
async fn these_serve(world: &World, these: &[&str], session: Option<&str>, headers: &[(&str, &str)]) {
    let these: BTreeSet<String> = these.iter().map(|&name| name.to_owned()).collect();
    let mut workers = BTreeSet::new();
    for n in 0..2_000 {
        if n >= 20 && workers == these {
            break;
        }
        let key = session.map(|prefix| format!("{prefix}-{n}"));
        let worker = served(&with(world, key.as_deref(), headers).await).worker;
        assert!(these.contains(&worker), "{worker} served {headers:?}, session {session:?}");
        workers.insert(worker);
    }
    assert_eq!(workers, these, "who served {headers:?}, session {session:?}");
}

/// Addresses of these engines, as a gateway lists them.
fn list(world: &World, engines: &[&str]) -> String {
    engines.iter().map(|name| world.engine(name).address().to_string()).collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn an_allow_list_is_kept() {
    for steering in BOTH {
        let world = world(steering, json!({})).await;
        let two = list(&world, &["w1", "w2"]);
        these_serve(&world, &["w1", "w2"], None, &[(SUBSET, &two)]).await;
        these_serve(&world, &["w1", "w2"], Some("listed"), &[(SUBSET, &two)]).await;
        let one = list(&world, &["w0"]);
        these_serve(&world, &["w0"], Some("alone"), &[(SUBSET, &one)]).await;
        // What was bound inside stays there without the list.
        for n in 0..5 {
            assert_eq!(turn(&world.client(), &format!("alone-{n}")).await.worker, "w0", "{steering:?}");
        }
        world.forget().await.unwrap();
        for (wanted, status) in [("127.0.0.1:1", 503), ("", 400), (" , ", 400)] {
            let turn = with(&world, Some("listed-nowhere"), &[(SUBSET, wanted)]).await;
            assert_eq!(turn.status, status, "{steering:?}: {wanted:?}");
            says_nothing_of(&turn, &["listed-nowhere", "w0", "w1", "w2"]);
        }
        for name in ["w0", "w1", "w2"] {
            assert_eq!(asked(&world, name).await, 0, "{name} was asked");
        }
        nothing_in_flight(&world).await;
    }
}

/// The bound slot is not on the list: hard affinity says no and keeps it, soft binds anew inside.
#[tokio::test]
async fn a_list_without_the_bound_slot() {
    for steering in BOTH {
        let hard = world(steering, json!({"affinity": "hard"})).await;
        let (key, home) = bound_to(&hard, "w0").await;
        let before = binding(&hard, &key).await;
        let others = list(&hard, &["w1", "w2"]);
        for demand in [(SUBSET, others.as_str()), (REQUIRE, "gpu=l4")] {
            let refused = with(&hard, Some(&key), &[demand]).await;
            assert_eq!(refused.status, 403, "{steering:?}: {demand:?}");
            assert_eq!(refused.json()["error"]["code"], "target_excluded");
            says_nothing_of(&refused, &[&key, "w0", "w1", "w2"]);
        }
        assert_eq!(binding(&hard, &key).await, before);
        assert_eq!(turn(&hard.client(), &key).await, home, "{steering:?}");
        nothing_in_flight(&hard).await;

        let soft = world(steering, json!({"affinity": "soft"})).await;
        let (key, _) = bound_to(&soft, "w0").await;
        let before = binding(&soft, &key).await;
        let only = list(&soft, &["w1"]);
        assert_eq!(served(&with(&soft, Some(&key), &[(SUBSET, &only)]).await).worker, "w1", "{steering:?}");
        wait_for("the binding to move", async || {
            let now = binding(&soft, &key).await;
            (now.worker == "w1" && now.version != before.version).then_some(())
        })
        .await
        .unwrap();
        assert_eq!(turn(&soft.client(), &key).await.worker, "w1", "{steering:?}: it did not stay inside");
        nothing_in_flight(&soft).await;
    }
}

#[tokio::test]
async fn labels_required_and_preferred() {
    for steering in BOTH {
        let world = world(steering, json!({})).await;
        for (header, value, workers) in [
            (REQUIRE, "gpu=h100", &["w0"][..]),
            (REQUIRE, "zone=a", &["w0", "w1"]),
            (REQUIRE, "gpu, zone = a", &["w0", "w1"]),
            (REQUIRE, "gpu=l4,zone=a", &["w1"]),
            (PREFER, "gpu=l4", &["w1"]),
            (PREFER, "gpu=none,color=red", &["w0", "w1", "w2"]),
        ] {
            for session in [None, Some(value)] {
                let session = session.map(|text| text.replace([' ', ',', '='], "-"));
                these_serve(&world, workers, session.as_deref(), &[(header, value)]).await;
            }
        }
        for (value, status) in [("gpu=none", 503), ("=x", 400)] {
            let turn = with(&world, None, &[(REQUIRE, value)]).await;
            assert_eq!(turn.status, status, "{steering:?}: {value}");
            says_nothing_of(&turn, &["w0", "w1", "w2"]);
        }
        nothing_in_flight(&world).await;
    }
}

/// A label that begins with `!` keeps everybody away who does not ask for it.
#[tokio::test]
async fn a_taint_repels() {
    let steering = Steering::Endpoints;
    let engines =
        [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).declaring("labels", json!({"!spot": "yes"}))];
    let plan = WorldPlan::new(steering, &engines).probes_every_ms(0).cold();
    let world = plan.edit(|config| config.trusted()).start().await.unwrap();
    world.warm_one(0, &["w0".to_owned()]).await.unwrap();
    wait_for("the tainted worker to serve who asks for it", async || {
        let turn = with(&world, None, &[(REQUIRE, "spot")]).await;
        (turn.slot()?.worker == "w1").then_some(())
    })
    .await
    .unwrap();
    these_serve(&world, &["w0"], Some("plain"), &[]).await;
    these_serve(&world, &["w0"], None, &[]).await;
    these_serve(&world, &["w1"], Some("spotted"), &[(REQUIRE, "spot=yes")]).await;
    // Who is bound there by asking may go on without asking again.
    assert_eq!(turn(&world.client(), "spotted-0").await.worker, "w1");
}

/// On a listener of anybody these are words without a meaning, and none of them reaches an engine.
#[tokio::test]
async fn strangers_demand_nothing() {
    for steering in BOTH {
        let engines = [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4)];
        let world = WorldPlan::new(steering, &engines).probes_every_ms(0).start().await.unwrap();
        for name in [SUBSET, REQUIRE, PREFER, DRY_RUN] {
            let value = if name == DRY_RUN { "1" } else { "127.0.0.1:1" };
            these_serve(&world, &["w0", "w1"], None, &[(name, value)]).await;
        }
        for engine in &world.engines {
            for seen in engine.requests().await.unwrap() {
                for name in [SUBSET, REQUIRE, PREFER, DRY_RUN] {
                    assert_eq!(seen.values(name), [""; 0], "{steering:?}: {name} reached an engine");
                }
            }
        }
    }
}

/// A dry run tells what would be done, and does nothing of it.
#[tokio::test]
async fn a_dry_run_changes_nothing() {
    for steering in BOTH {
        let world = world(steering, json!({})).await;
        let (bound, home) = bound_to(&world, "w1").await;
        let before = binding(&world, &bound).await;
        world.forget().await.unwrap();
        for key in [None, Some("never-seen"), Some(bound.as_str())] {
            let told = with(&world, key, &[(DRY_RUN, "1")]).await;
            assert_eq!((told.status, told.slot()), (200, None), "{steering:?}: {key:?}");
            let decision = told.json();
            let worker = decision["choice"]["worker"].as_str().unwrap_or_default();
            assert!(["w0", "w1", "w2"].contains(&worker), "{decision}");
            assert_eq!(decision["candidates"].as_array().map(Vec::len), Some(3), "{decision}");
            if key == Some(bound.as_str()) {
                let rank = decision["choice"]["rank"].as_u64();
                assert_eq!((worker, rank), (home.worker.as_str(), home.rank.map(u64::from)), "{decision}");
            }
            let text = String::from_utf8_lossy(&told.body).into_owned();
            assert!(key.is_none_or(|key| !text.contains(key)), "the key is shown: {text}");
        }
        let limited = with(&world, None, &[(DRY_RUN, "true"), (REQUIRE, "gpu=h100")]).await.json();
        assert_eq!(limited["choice"]["worker"], "w0");
        let left_out: Vec<&Value> =
            limited["candidates"].as_array().unwrap().iter().filter(|one| one["worker"] != "w0").collect();
        assert!(left_out.iter().all(|one| one["removed_by"] == json!(["labels"])), "{limited}");
        for name in ["w0", "w1", "w2"] {
            assert_eq!(asked(&world, name).await, 0, "{steering:?}: {name} was asked");
        }
        assert_eq!(world.service.session("never-seen").await.unwrap().status, 404, "{steering:?}");
        assert_eq!(binding(&world, &bound).await, before, "{steering:?}");
        nothing_in_flight(&world).await;
    }
}
