//! Discovery as Envoy polls it, and what an Envoy that polls is shown of the topology.

use crate::support::{Answer, Api, ranked};
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

async fn poll(api: &Api, kind: &str, version: &str, names: &[&str]) -> Answer {
    let body =
        json!({"version_info": version, "node": {"id": "n1", "cluster": "c"}, "resource_names": names});
    api.data(Method::POST, &format!("/v3/discovery:{kind}"), body.to_string()).await
}

fn version(answer: &Answer) -> String {
    answer.json()["version_info"].as_str().unwrap().to_owned()
}

async fn topology(api: &Api, node: &str) -> Vec<Value> {
    let shown = api.control(Method::GET, &format!("/v1/topology?node={node}"), "").await.json();
    shown["topology"]["workers"].as_array().unwrap().iter().map(|worker| worker["id"].clone()).collect()
}

#[tokio::test]
async fn clusters_and_endpoints_follow_the_workers() {
    let api = Api::new();
    api.put("w", &ranked(8001)).await;
    let clusters = poll(&api, "clusters", "", &[]).await.json();
    assert_eq!(clusters["type_url"], "type.googleapis.com/envoy.config.cluster.v3.Cluster");
    assert_eq!(clusters["resources"][0]["name"], "rankpin-worker-w");
    let endpoints = poll(&api, "endpoints", "", &["rankpin-pool-default"]).await.json();
    let listed = &endpoints["resources"][0]["endpoints"][0]["lb_endpoints"];
    assert_eq!(
        listed[0]["endpoint"]["address"]["socket_address"],
        json!({"address": "127.0.0.1", "port_value": 8001})
    );
    assert_eq!(listed[0]["health_status"], "HEALTHY");

    api.control(Method::POST, "/v1/workers/w/drain", "").await;
    let drained = poll(&api, "endpoints", "", &["rankpin-pool-default"]).await.json();
    assert_eq!(drained["resources"][0]["endpoints"][0]["lb_endpoints"][0]["health_status"], "DRAINING");
    assert_ne!(drained["version_info"], endpoints["version_info"], "a poll with the old version must see it");
}

#[tokio::test]
async fn a_poll_that_has_everything_is_told_so_in_few_bytes() {
    let api = Api::new();
    api.put("w", &ranked(8001)).await;
    let first = poll(&api, "clusters", "", &[]).await;
    let again = poll(&api, "clusters", &version(&first), &[]).await;
    assert_eq!((again.status, again.bytes.len()), (StatusCode::NOT_MODIFIED, 0));
    api.put("v", &ranked(8002)).await;
    assert_eq!(poll(&api, "clusters", &version(&first), &[]).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_polling_node_sees_a_worker_only_once_it_has_it() {
    let api = Api::new();
    api.put("old", &ranked(8001)).await;
    let first = poll(&api, "clusters", "", &[]).await;
    poll(&api, "clusters", &version(&first), &[]).await;
    assert_eq!(topology(&api, "n1").await, ["old"]);

    api.put("new", &ranked(8002)).await;
    assert_eq!(topology(&api, "n1").await, ["old"], "withheld until acknowledged");
    assert_eq!(topology(&api, "other").await, ["new", "old"], "a node that does not poll sees all");
    let second = poll(&api, "clusters", &version(&first), &[]).await;
    assert_eq!(topology(&api, "n1").await, ["old"], "sent is not yet applied");
    poll(&api, "clusters", &version(&second), &[]).await;
    assert_eq!(topology(&api, "n1").await, ["new", "old"]);

    api.control(Method::DELETE, "/v1/workers/old", "").await;
    assert_eq!(topology(&api, "n1").await, ["new"], "a removal shows at once");
}

#[tokio::test]
async fn a_refusal_is_counted_and_is_no_acknowledgement() {
    let api = Api::new();
    let first = poll(&api, "clusters", "", &[]).await;
    poll(&api, "clusters", &version(&first), &[]).await;
    api.put("w", &ranked(8001)).await;
    let second = poll(&api, "clusters", &version(&first), &[]).await;
    let refusal = json!({"versionInfo": version(&second), "node": {"id": "n1"}, "errorDetail": {"code": 13, "message": "no"}});
    let answer = api.data(Method::POST, "/v3/discovery:clusters", refusal.to_string()).await;
    assert!(answer.status == StatusCode::OK || answer.status == StatusCode::NOT_MODIFIED);
    assert!(topology(&api, "n1").await.is_empty());
    assert!(
        api.control(Method::GET, "/metrics", "").await.text().contains("rankpin_xds_rejections_total 1\n")
    );
}

#[tokio::test]
async fn a_version_of_an_earlier_life_acknowledges_nothing() {
    let (earlier, api) = (Api::new(), Api::new());
    for port in 8001..8010 {
        earlier.put(&format!("w{port}"), &ranked(port)).await;
    }
    let stale = version(&poll(&earlier, "clusters", "", &[]).await);
    api.put("old", &ranked(8001)).await;
    crate::support::until("the workers are told", || async {
        (poll(&api, "clusters", &stale, &[]).await.status == StatusCode::OK).then_some(())
    })
    .await;
    api.put("w", &ranked(8002)).await;
    poll(&api, "clusters", &stale, &[]).await;
    assert_eq!(topology(&api, "n1").await, ["old"]);
}

#[tokio::test]
async fn a_poll_with_a_version_of_another_life_is_put_off_until_workers_are_told() {
    let api = Api::new();
    for kind in ["clusters", "endpoints"] {
        let put_off = poll(&api, kind, "99.4.ab", &["rankpin-pool-default"]).await;
        assert_eq!((put_off.status.as_u16(), put_off.header("retry-after")), (503, "1"), "{kind}");
        assert_eq!(put_off.json()["code"], "nothing_declared");
        assert!(put_off.json()["detail"].as_str().unwrap().starts_with("nothing is declared yet"));
        let fresh = poll(&Api::new(), kind, "", &["rankpin-pool-default"]).await;
        assert_eq!(fresh.status, StatusCode::OK, "a fresh Envoy waits for nobody");
    }
    api.put("w", &ranked(8001)).await;
    let put_off = poll(&api, "clusters", "99.4.ab", &[]).await;
    assert!(
        put_off.json()["detail"].as_str().unwrap().starts_with("1 workers are declared, more may follow")
    );
    let told = crate::support::until("the workers are told", || async {
        let answer = poll(&api, "clusters", "99.4.ab", &[]).await;
        (answer.status == StatusCode::OK).then_some(answer)
    });
    assert_eq!(told.await.json()["resources"][0]["name"], "rankpin-worker-w");
    assert_eq!(topology(&api, "n1").await, ["w"]);
}

#[tokio::test]
async fn the_wrong_type_for_a_path_is_refused() {
    let body = json!({"type_url": "type.googleapis.com/envoy.config.listener.v3.Listener"});
    let answer = Api::new().data(Method::POST, "/v3/discovery:clusters", body.to_string()).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
}
