//! No client steers: what it sends in the headers that steer reaches no worker and chooses nothing, with the filter and
//! without it.

use e2e::client::{Turn, send};
use e2e::scratch::Scratch;
use e2e::{Client, Engine, EngineSpec, Steering, WorldPlan};
use routing::header;
use serde_json::json;

const BOTH: [Steering; 2] = [Steering::Cluster, Steering::Endpoints];

fn two_engines() -> [EngineSpec; 2] {
    [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).from(4)]
}

/// An engine that Envoy has a cluster for and that nobody may reach: the prize of a successful spoof.
async fn trap(scratch: &Scratch) -> Engine {
    Engine::start(scratch.path(), EngineSpec::new("trap", 8)).await.unwrap()
}

fn with_trap(plan: WorldPlan, trap: &Engine) -> WorldPlan {
    let (ip, port) = (trap.address().ip().to_string(), trap.address().port());
    plan.edit(move |config| {
        let cluster = json!({"name": "rankpin-worker-trap", "type": "STATIC", "connect_timeout": "1s",
            "load_assignment": {"cluster_name": "rankpin-worker-trap", "endpoints": [{"lb_endpoints": [
                {"endpoint": {"address": {"socket_address": {"address": ip, "port_value": port}}}}]}]}});
        let clusters = config.document().pointer_mut("/static_resources/clusters").unwrap();
        clusters.as_array_mut().unwrap().push(cluster);
        Ok(())
    })
}

/// Every steering header there is, in several spellings, twice where that may matter.
async fn spoof(client: &Client, session: Option<&str>, trap: &Engine) -> Turn {
    let mut request = client.chat_request(session, "spoof");
    for name in [header::CLUSTER, "X-Rankpin-Cluster"] {
        request = request.header(name, "rankpin-worker-trap");
    }
    request = request.header(header::ENDPOINTS, trap.address().to_string());
    request = request.header("X-Data-Parallel-Rank", "3").header(header::VLLM_RANK, "2");
    for name in header::TRUSTED {
        request = request.header(*name, "trap");
    }
    send(request).await.unwrap()
}

#[tokio::test]
async fn the_filter_decides_whatever_the_client_sends() {
    for steering in BOTH {
        let scratch = Scratch::new().unwrap();
        let trap = trap(&scratch).await;
        let world = with_trap(WorldPlan::new(steering, &two_engines()), &trap).start().await.unwrap();
        let client = world.client();
        for key in ["session-1", "conv-42", "s"] {
            let honest = client.chat(Some(key), "honest").await.unwrap();
            assert_eq!(spoof(&client, Some(key), &trap).await.slot(), honest.slot(), "{steering:?}, {key}");
            // A first turn that spoofs.
            let fresh = format!("spoofed-{key}");
            let first = spoof(&client, Some(&fresh), &trap).await.slot();
            assert_eq!(client.chat(Some(&fresh), "honest").await.unwrap().slot(), first);
        }
        assert_eq!(spoof(&client, None, &trap).await.status, 200);
        // B7: stripped, and counted: two spoofs a key and one without.
        assert_eq!(world.envoy().requests("spoofed").await.unwrap(), 7, "{steering:?}");
        nothing_arrived(&world.engines, |rank, seen| match seen {
            [] => true,
            [value] => *value == rank.unwrap().to_string(),
            _ => false,
        })
        .await;
        assert!(trap.requests().await.unwrap().is_empty(), "{steering:?}: a client chose its cluster");
    }
}

#[tokio::test]
async fn without_the_filter_the_config_alone_keeps_them_out() {
    for steering in BOTH {
        let scratch = Scratch::new().unwrap();
        let trap = trap(&scratch).await;
        let plan = WorldPlan::new(steering, &two_engines()).cold();
        let trapped = with_trap_and_no_filter(plan, &trap);
        let world = trapped.start().await.unwrap();
        let client = world.client();
        for n in 0..4 {
            let key = format!("bare-{n}");
            let honest = client.chat(Some(&key), "honest").await.unwrap();
            assert_eq!(honest.status, 200);
            let spoofed = spoof(&client, Some(&key), &trap).await;
            let worker = |turn: &Turn| turn.slot().map(|slot| slot.worker);
            // Sticky per worker by Envoy's own hash, whatever was sent.
            assert_eq!(worker(&spoofed), worker(&honest), "{steering:?}");
        }
        nothing_arrived(&world.engines, |_, seen| seen.is_empty()).await;
        assert!(trap.requests().await.unwrap().is_empty(), "{steering:?}: a client chose its cluster");
        assert!(world.envoy().stats("wasmcustom").await.unwrap().is_empty(), "the filter is still there");
    }
}

fn with_trap_and_no_filter(plan: WorldPlan, trap: &Engine) -> WorldPlan {
    with_trap(plan, trap).edit(|config| {
        config.without_filter();
        Ok(())
    })
}

/// Asserts that no steering header reached an engine; `rank_is_ours` judges the rank headers that did.
async fn nothing_arrived(engines: &[Engine], rank_is_ours: impl Fn(Option<u32>, &[&str]) -> bool) {
    for engine in engines {
        for request in engine.requests().await.unwrap() {
            for name in [header::CLUSTER, header::ENDPOINTS, header::SPOOFED].iter().chain(header::TRUSTED) {
                assert_eq!(request.values(name), [""; 0], "{name} reached {}", engine.name());
            }
            let ranks = request.values(header::VLLM_RANK);
            assert!(rank_is_ours(request.rank, &ranks), "rank {ranks:?} reached {}", engine.name());
        }
    }
}
