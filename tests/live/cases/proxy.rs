//! Case group G where no theme shows it yet: hostile bytes from clients and from engines, and every config fault at once.

use std::net::SocketAddr;

use e2e::client::{CHAT, RESPONSES};
use e2e::raw::Raw;
use e2e::scratch::Scratch;
use e2e::{Bootstrap, Steering, World, WorldPlan, artifacts, envoy};
use routing::header;
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{nothing_in_flight, three_engines, turn, vms};

const LANES: u64 = 80;
const REQUESTS_A_LANE: u64 = 15;

/// Xorshift: the same bytes on every run.
pub(super) struct Dice(u64);

impl Dice {
    /// Each number its own bytes.
    pub(super) const fn new(number: u64) -> Self {
        Self(number.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Up to `most` bytes; no line break, which would only end the header.
    pub(super) fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.below(most);
        (0..len).map(|_| self.next() as u8).filter(|byte| !b"\r\n".contains(byte)).collect()
    }

    /// Bytes that look like something, broken at a random place.
    pub(super) fn broken(&mut self, forms: &[&str]) -> Vec<u8> {
        let mut text = forms[self.below(forms.len())].as_bytes().to_vec();
        let at = self.below(text.len() + 1);
        match self.below(3) {
            0 => text.truncate(at),
            1 => text.splice(at..at, self.bytes(12)).for_each(drop),
            _ => text.iter_mut().skip(at).step_by(3).for_each(|byte| *byte = byte.wrapping_add(128)),
        }
        text.retain(|byte| !b"\r\n".contains(byte));
        text
    }
}

const FORMS: [&str; 9] = [
    "sid=abc; other=\"x\"; sid=\"quoted\"",
    "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhYmMiLCJuIjp7Im0iOjF9fQ.c2ln",
    "w0",
    "4294967296",
    "-1",
    "127.0.0.1:1,127.0.0.1:2,[::1]:3",
    "key=value,key,!=x",
    "true",
    "%00%zz%f0%9f%9a%80%",
];

const BODIES: [&str; 5] = [
    r#"{"model":"tiny","messages":[{"role":"user","content":"x"}],"session_id":"a\u0041\ud83d\ude80","metadata":{"user_id":"u"}}"#,
    r#"{"a":[[[[[[{"b":[1,-2.5e+10,true,null,"\"\\\/\b"]}]]]]]],"prompt_cache_key":"k"}"#,
    r#"{"model":"tiny","model":"big","conversation":{"id":"c"},"conversation":"d"}"#,
    "[1,2,3]",
    "\u{feff}{}",
];

/// One request in which everything a client can write is hostile.
fn hostile(dice: &mut Dice) -> Vec<u8> {
    let names =
        [header::SESSION_DEFAULT, header::TRUSTED, &["cookie", "authorization", "x-session-final"]].concat();
    let path = [CHAT, RESPONSES, "/v1/responses/resp_1", "/v1/audio/transcriptions"][dice.below(4)];
    let mut bytes = format!("POST {path}?sid=").into_bytes();
    bytes.extend(dice.broken(&FORMS).into_iter().filter(u8::is_ascii_graphic));
    bytes.extend_from_slice(
        b" HTTP/1.1\r\nhost: hostile\r\nconnection: close\r\ncontent-type: application/json",
    );
    for _ in 0..=dice.below(6) {
        bytes.extend_from_slice(format!("\r\n{}: ", names[dice.below(names.len())]).as_bytes());
        let value = if dice.below(2) == 0 { dice.bytes(600) } else { dice.broken(&FORMS) };
        // Control bytes end the request in Envoy's own parser: once in a while is enough.
        let all = dice.below(32) == 0;
        bytes.extend(value.into_iter().filter(|byte| all || !byte.is_ascii_control()));
    }
    let body = if dice.below(3) == 0 { dice.bytes(5_000) } else { dice.broken(&BODIES) };
    bytes.extend_from_slice(format!("\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes());
    bytes.extend(body);
    bytes
}

/// Sends it; whatever comes back, the connection ends.
async fn send(to: SocketAddr, bytes: &[u8]) {
    let mut client = Raw::connect(to).await.unwrap();
    // Envoy may have closed before it had everything.
    if client.send(bytes).await.is_ok() {
        client.ended().await.unwrap_or_else(|error| panic!("{error}: {}", bytes.escape_ascii()));
    }
}

/// No VM dies of it, nothing stays counted or held, and sessions are where they were.
#[tokio::test]
async fn g3_hostile_bytes() {
    for steering in [Steering::Cluster, Steering::Endpoints, Steering::Agents] {
        let world = everything_read(steering).await;
        let home = turn(&world.client(), "honest").await;
        let before = vms(&world).await;
        let mut lanes = JoinSet::new();
        for lane in 1..=LANES {
            let (to, mut dice) = (world.envoy().address(), Dice::new(lane));
            lanes.spawn(async move {
                for _ in 0..REQUESTS_A_LANE {
                    send(to, &hostile(&mut dice)).await;
                }
            });
        }
        lanes.join_all().await;
        let seen = decided(&world).await;
        assert!(seen >= LANES * REQUESTS_A_LANE / 2, "only {seen} requests came through Envoy's parser");
        assert_eq!(vms(&world).await, before, "{steering:?}: a VM died");
        let log = world.envoy().log();
        assert!(!log.contains("Uncaught RuntimeError"), "{log}");
        assert_eq!(turn(&world.client(), "honest").await, home, "{steering:?}");
        nothing_in_flight(&world).await;
    }
}

/// Requests that the filter decided about, however.
async fn decided(world: &World) -> u64 {
    let stats = world.envoy().stats("wasmcustom.rankpin.requests.").await.unwrap();
    let words =
        ["pinned", "routed_held", "joined", "session_key_missing", "key_too_long", "named", "named_refused"];
    let own =
        |name: &str| words.iter().any(|word| name.strip_suffix(word).is_some_and(|rest| rest.ends_with('.')));
    stats.iter().filter(|(name, _)| own(name)).map(|(_, count)| count).sum()
}

/// A listener that reads every kind of source its module can, and trusts its callers.
async fn everything_read(steering: Steering) -> World {
    let plan = WorldPlan::new(steering, &three_engines()).probes_every_ms(0);
    let plan = plan.edit(move |config| {
        config.trusted()?;
        config.served_header()?;
        let bodies = steering == Steering::Agents;
        if bodies {
            config.wasm(&artifacts::module(artifacts::FULL_MODULE)?)?;
        }
        config.plugin(|own| {
            let mut sources = vec![
                "header:x-session-id",
                "header:x-claude-code-session-id",
                "cookie:sid",
                "query:sid",
                "jwt:sub",
                "jwt:/n/m@x-rankpin-prefer",
            ];
            if bodies {
                sources.extend(["body:/session_id", "body:/conversation", "body:/metadata/user_id"]);
                own["response_ids"] = json!(true);
            }
            own["session"] = json!({"sources": sources, "scope": ["header:x-tenant", "jwt:sub"],
                "subagents": "parent", "fallback": bodies});
        })
    });
    plan.start().await.unwrap()
}

/// Every field of the filter's config wrong at once: each is named with its path, and Envoy refuses the config.
#[test]
fn g4_every_fault_of_the_filter_is_named() {
    let mut config = json!({"unknown": 1, "session": {"unknown": 1}});
    for field in routing::config::fields() {
        let mut place = &mut config;
        for name in field.path.split('.') {
            place = &mut place[name];
        }
        *place = json!({"neither": ["text", "number"]});
    }
    let scratch = Scratch::new().unwrap();
    for steering in [Steering::Cluster, Steering::Endpoints, Steering::Agents, Steering::Kv, Steering::Phases]
    {
        let mut bootstrap = Bootstrap::shipped(steering).unwrap();
        bootstrap.plugin_text(&config.to_string()).unwrap();
        let said = envoy::validate(&bootstrap, scratch.path()).unwrap();
        assert!(!said.status.success(), "{steering:?}: Envoy takes it");
        let text = String::from_utf8_lossy(&said.stderr);
        for path in
            routing::config::fields().iter().map(|field| field.path).chain(["unknown", "session.unknown"])
        {
            assert!(text.contains(&format!("{path}: ")), "{steering:?}: {path} is not named in\n{text}");
        }
    }
}
