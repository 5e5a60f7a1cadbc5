//! Somebody answers at the service's address who does not speak this contract: a service of another version of it, or none at all.
//! Conversations stay, new ones are placed without it, and the filter counts that it is not understood.

use std::net::SocketAddr;

use e2e::{Client, EngineSpec, Envoy, Steering, WorldPlan, wait_for};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A service that knows none of the paths, and one whose answers have another shape.
const ANSWERS: [&str; 2] = [
    "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 14\r\nconnection: close\r\n\r\n{\"contract\": 2}",
];

#[tokio::test]
async fn a_contract_that_is_not_ours_costs_locality_at_most_and_is_counted() {
    for answer in ANSWERS {
        let engines = [EngineSpec::new("w0", 2), EngineSpec::new("w1", 2).from(2)];
        let mut world = WorldPlan::new(Steering::Endpoints, &engines).start().await.unwrap();
        let client = world.client();
        let mut bound = Vec::new();
        for n in 0..8 {
            let key = format!("bound-{n}");
            bound.push((client.chat(Some(&key), "hello").await.unwrap().slot().unwrap(), key));
        }
        assert_eq!(unread(world.envoy()).await, 0);
        world.service.kill();
        let stranger = tokio::spawn(answer_all(world.service.data(), answer));
        wait_for("the stranger to be noticed", async || (unread(world.envoy()).await > 0).then_some(()))
            .await
            .unwrap();
        for (slot, key) in &bound {
            let turn = client.chat(Some(key), "again").await.unwrap();
            assert_eq!((turn.status, turn.slot().as_ref()), (200, Some(slot)), "{answer}: {key}");
        }
        new_ones(&client, answer).await;
        let alone = world.envoy().requests("placed_alone").await.unwrap();
        assert!(alone >= 8, "{answer}: {alone} of 8 placed without a service");
        let mut failed = 0;
        for word in ["route_failed", "route_malformed"] {
            failed += world.envoy().requests(word).await.unwrap();
        }
        assert!(failed > 0, "{answer}: no answer of `route` is counted");
        stranger.abort();
    }
}

/// Conversations that begin meanwhile are placed, and keep their slot.
async fn new_ones(client: &Client, answer: &str) {
    for n in 0..8 {
        let key = format!("new-{n}");
        let first = client.chat(Some(&key), "hello").await.unwrap();
        let next = client.chat(Some(&key), "again").await.unwrap();
        assert_eq!((first.status, next.status), (200, 200), "{answer}: {key}");
        assert!(first.slot().is_some() && first.slot() == next.slot(), "{answer}: {key}");
    }
}

async fn unread(envoy: &Envoy) -> u64 {
    envoy.stat("wasmcustom.rankpin.watch_unread").await.unwrap()
}

/// Takes each connection's first request and answers it so.
async fn answer_all(at: SocketAddr, answer: &'static str) {
    let listener = TcpListener::bind(at).await.unwrap();
    while let Ok((mut socket, _)) = listener.accept().await {
        tokio::spawn(async move {
            // Heads and the small bodies of these calls come in one piece; what they say is no matter.
            let mut request = [0; 64 << 10];
            if socket.read(&mut request).await.is_ok() {
                let _ = socket.write_all(answer.as_bytes()).await;
                let _ = socket.shutdown().await;
            }
        });
    }
}
