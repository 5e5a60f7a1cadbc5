//! Session keys from cookies, query parameters and bearer tokens; tenants whose equal keys never meet; sub-agents that share a slot.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use e2e::client::{CHAT, SESSION, Slot, send};
use e2e::{EngineSpec, Steering, World, WorldPlan};
use reqwest::Method;
use routing::hash::{hashed_rank, rank_hash};
use serde_json::{Value, json};

use crate::support::{BOTH, served, three_engines};

/// A turn at that path with these headers and no others.
async fn at(world: &World, path: &str, headers: &[(&str, &str)]) -> Slot {
    let body = json!({"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]});
    let mut request = world.client().request(Method::POST, path).json(&body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    served(&send(request).await.unwrap())
}

async fn with_session(steering: Steering, engines: &[EngineSpec], session: Value) -> World {
    let plan = WorldPlan::new(steering, engines).probes_every_ms(0);
    plan.edit(move |config| config.plugin(|own| own["session"] = session.clone())).start().await.unwrap()
}

/// A token nobody signed, with these claims.
fn token(claims: &Value) -> String {
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    format!("Bearer {}.{}.{}", part(&json!({"alg": "none"})), part(claims), "c2ln")
}

/// The rank says which key was read.
#[tokio::test]
async fn cookies_parameters_and_claims() {
    for steering in BOTH {
        let sources = json!({"sources": ["cookie:sid", "query:sid", "jwt:sid", "jwt:/act/session@x-token", format!("header:{SESSION}")]});
        let world = with_session(steering, &[EngineSpec::new("w0", 8)], sources).await;
        let (plain, nested) =
            (token(&json!({"sid": "claimed"})), token(&json!({"act": {"session": "nested"}})));
        let number = token(&json!({"sid": 7}));
        let other = format!("{CHAT}?x=1&sid=para%6Deter");
        for (path, headers, key) in [
            (CHAT, vec![("cookie", "a=b; sid=biscuit; c=d")], Some("biscuit")),
            (CHAT, vec![("cookie", "xsid=no; sid=\"quoted\"")], Some("quoted")),
            (other.as_str(), vec![], Some("parameter")),
            (other.as_str(), vec![("cookie", "sid=biscuit")], Some("biscuit")),
            (CHAT, vec![("authorization", plain.as_str())], Some("claimed")),
            (CHAT, vec![("x-token", nested.as_str())], Some("nested")),
            (CHAT, vec![("authorization", number.as_str())], None),
            (CHAT, vec![("authorization", "Bearer nonsense")], None),
            (CHAT, vec![("authorization", "Basic c2lkOng=")], None),
            (CHAT, vec![("authorization", "Bearer a.b.c"), (SESSION, "behind")], Some("behind")),
        ] {
            at(&world, path, &headers).await;
            let seen = world.engine("w0").requests().await.unwrap().pop().unwrap();
            let wanted = key.and_then(|key| hashed_rank(rank_hash(key.as_bytes()), 0, 8));
            assert_eq!(
                seen.rank_header,
                wanted.map(|rank| rank.0.to_string()),
                "{steering:?}: {path} {headers:?}"
            );
            // What names the session goes on as it came.
            for (name, value) in &headers {
                assert_eq!(seen.values(name), [*value], "{steering:?}");
            }
        }
    }
}

/// Two tenants that choose the same id are two sessions; one tenant's is one.
#[tokio::test]
async fn tenants_never_meet() {
    for steering in BOTH {
        let session = json!({"scope": ["jwt:tenant", "header:x-org"]});
        let world = with_session(steering, &three_engines(), session).await;
        let tokens = ["a", "b"].map(|tenant| token(&json!({"tenant": tenant})));
        let before = world.envoy().requests("routed_held").await.unwrap();
        for round in 0..2 {
            for (token, org) in [(0, "x"), (1, "x"), (0, "y")] {
                let headers = [("authorization", tokens[token].as_str()), ("x-org", org), (SESSION, "same")];
                at(&world, CHAT, &headers).await;
            }
            at(&world, CHAT, &[(SESSION, "same")]).await;
            let held = world.envoy().requests("routed_held").await.unwrap() - before;
            assert_eq!(held, 4, "{steering:?}, round {round}: three tenants and nobody's");
        }
        // Parts of a scope do not run into one another.
        for org in ["xb", "b"] {
            let tenant = token(&json!({"tenant": if org == "b" { "ax" } else { "a" }}));
            at(&world, CHAT, &[("authorization", tenant.as_str()), ("x-org", org), (SESSION, "same")]).await;
        }
        assert_eq!(world.envoy().requests("routed_held").await.unwrap() - before, 6, "{steering:?}");
    }
}

/// A8: sub-agents of one root share a binding, the root keeps its own, and no key that a client sends is theirs.
#[tokio::test]
async fn a8_siblings_share_one_binding() {
    for steering in BOTH {
        let world = with_session(steering, &three_engines(), json!({"subagents": "parent"})).await;
        let held = async || world.envoy().requests("routed_held").await.unwrap();
        let before = held().await;
        let mut apart = 0;
        for root in 0..12 {
            let id = format!("root-{root}");
            let claude = [("x-claude-code-session-id", id.as_str())];
            let own = at(&world, CHAT, &claude).await;
            let mut slots = BTreeSet::new();
            for _ in 0..2 {
                for agent in ["a", "b", "c"] {
                    slots.insert(at(&world, CHAT, &[claude[0], ("x-claude-code-agent-id", agent)]).await);
                }
                assert_eq!(at(&world, CHAT, &claude).await, own, "{steering:?}: the root moved");
            }
            assert_eq!(slots.len(), 1, "{steering:?}: siblings of {id} were on {slots:?}");
            apart += usize::from(!slots.contains(&own));
        }
        assert_eq!(held().await, before + 24, "{steering:?}: two sessions a root");
        assert!(apart > 0, "{steering:?}: every sibling is where its root is");
        for (n, parent) in ["x-parent-session-id", "x-dynamo-parent-session-id", "x-codex-parent-thread-id"]
            .iter()
            .enumerate()
        {
            let (before, root) = (held().await, format!("parent-{n}"));
            let own = at(&world, CHAT, &[(SESSION, &root)]).await;
            let mut slots = BTreeSet::new();
            for child in ["one", "two"] {
                let child = format!("{child}-{n}");
                for _ in 0..2 {
                    slots.insert(at(&world, CHAT, &[(SESSION, &child), (parent, &root)]).await);
                }
            }
            assert_eq!(slots.len(), 1, "{steering:?}: {parent}: {slots:?}");
            assert_eq!(at(&world, CHAT, &[(SESSION, &root)]).await, own);
            assert_eq!(held().await, before + 2, "{steering:?}: {parent}");
        }
    }
}

/// By default each agent is on its own, whatever it says of its parent.
#[tokio::test]
async fn a8_own_takes_no_notice_of_parents() {
    let world =
        WorldPlan::new(Steering::Endpoints, &three_engines()).probes_every_ms(0).start().await.unwrap();
    let before = world.envoy().requests("routed_held").await.unwrap();
    for _ in 0..2 {
        for child in ["child-1", "child-2", "child-3"] {
            at(&world, CHAT, &[(SESSION, child), ("x-parent-session-id", "the-parent")]).await;
        }
    }
    assert_eq!(world.envoy().requests("routed_held").await.unwrap(), before + 3);
}
