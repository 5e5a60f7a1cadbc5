//! Declared workers across lives of the real binary.

use crate::binary::Rankpin;
use serde_json::{Value, json};
use std::path::Path;

fn worker(port: u16) -> Value {
    json!({"endpoints": [{"address": format!("127.0.0.1:{port}"), "dp_start": 4, "dp_size": 4}], "weight": 3})
}

async fn start(dir: &Path) -> Rankpin {
    Rankpin::start(dir, &["--probe-interval-ms", "0", "--state-dir", dir.join("state").to_str().unwrap()])
        .await
}

async fn ids(service: &Rankpin) -> Vec<Value> {
    service.control("/v1/workers").await["workers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| w["id"].clone())
        .collect()
}

#[tokio::test]
async fn an_acknowledged_worker_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut service = start(dir.path()).await;
    assert_eq!(service.put("a", &worker(8001)).await, 201);
    assert_eq!(service.put("b", &worker(8002)).await, 201);
    let before = service.control("/v1/workers/a").await["declared"].clone();
    service.signal(libc::SIGKILL);
    service.ended().await;

    let service = start(dir.path()).await;
    assert_eq!(ids(&service).await, ["a", "b"]);
    assert_eq!(service.control("/v1/workers/a").await["declared"], before);
    let saved: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("state/workers.json")).unwrap()).unwrap();
    assert_eq!((&saved["version"], saved["workers"].as_array().unwrap().len()), (&json!(1), 2));
}

#[tokio::test]
async fn many_at_once_are_all_saved() {
    let dir = tempfile::tempdir().unwrap();
    let mut service = start(dir.path()).await;
    let puts: Vec<_> = (0..40)
        .map(|i| {
            let request = reqwest::Client::builder().no_proxy().build().unwrap();
            let request = request
                .put(format!("{}/v1/workers/w{i:02}", service.control))
                .body(worker(8000 + i).to_string());
            tokio::spawn(async move { request.send().await.unwrap().status().as_u16() })
        })
        .collect();
    for put in puts {
        assert_eq!(put.await.unwrap(), 201);
    }
    service.signal(libc::SIGKILL);
    service.ended().await;
    assert_eq!(ids(&start(dir.path()).await).await.len(), 40);
}

#[tokio::test]
async fn a_forgotten_worker_stays_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut service = start(dir.path()).await;
    service.put("a", &worker(8001)).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    client.delete(format!("{}/v1/workers/a", service.control)).send().await.unwrap();
    service.signal(libc::SIGKILL);
    service.ended().await;
    assert!(ids(&start(dir.path()).await).await.is_empty());
}

/// What an Envoy that remembers another life is told at once.
async fn told(service: &Rankpin) -> Value {
    let url = format!("{}/v1/watch?node=n&epoch=99&topology=3", service.data);
    crate::binary::client().get(url).send().await.unwrap().json().await.unwrap()
}

#[tokio::test]
async fn with_its_file_a_service_knows_all_workers_and_without_it_empties_nobodys_topology() {
    let dir = tempfile::tempdir().unwrap();
    let mut service = start(dir.path()).await;
    assert_eq!(service.put("a", &worker(8001)).await, 201);
    service.signal(libc::SIGKILL);
    service.ended().await;
    let mut service = start(dir.path()).await;
    let news = told(&service).await;
    assert_eq!((&news["upload"], &news["topology"]["workers"][0]["id"]), (&json!(true), &json!("a")));
    service.signal(libc::SIGKILL);
    service.ended().await;

    std::fs::remove_file(dir.path().join("state/workers.json")).unwrap();
    let service = start(dir.path()).await;
    let news = told(&service).await;
    assert_eq!((&news["upload"], news.get("topology")), (&json!(true), None));
    assert_eq!(service.put("b", &worker(8002)).await, 201);
    let shown = crate::support::until("the workers are told", || async {
        told(&service).await.get("topology").cloned()
    });
    assert_eq!(shown.await["workers"][0]["id"], "b");
}

#[tokio::test]
async fn files_of_an_earlier_life_stay_until_the_workers_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("xds");
    std::fs::create_dir(&files).unwrap();
    let earlier = json!({"version_info": "99.4.ab", "resources": ["of another life"]});
    std::fs::write(files.join("cds.json"), earlier.to_string()).unwrap();
    let service =
        Rankpin::start(dir.path(), &["--probe-interval-ms", "0", "--xds-dir", files.to_str().unwrap()]).await;
    service.put("w", &worker(8001)).await;
    let files = &files;
    crate::support::until("the files are written", || async move {
        let text = std::fs::read(files.join("cds.json")).unwrap();
        let found: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(found["resources"].as_array().unwrap().len(), 1, "never emptied");
        (found["resources"][0]["name"] == "rankpin-worker-w").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_corrupt_file_is_moved_aside_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::write(state.join("workers.json"), r#"{"version":1,"workers":[{"#).unwrap();
    let service = start(dir.path()).await;
    let ready = service.control("/readyz").await;
    assert_eq!(
        (&ready["ready"], &ready["warnings"][0]["code"]),
        (&json!(false), &json!("state_file_corrupt"))
    );
    assert_eq!(
        std::fs::read_to_string(state.join("workers.json.corrupt-1")).unwrap(),
        r#"{"version":1,"workers":[{"#
    );
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(log.contains("ERROR") && log.contains("workers.json.corrupt-1"), "{log}");

    assert_eq!(service.put("a", &worker(8001)).await, 201);
    assert_eq!(service.control("/readyz").await["ready"], true, "it serves, and goes on telling");
    assert_eq!(service.control("/readyz").await["warnings"][0]["code"], "state_file_corrupt");
}

#[tokio::test]
async fn a_saved_worker_that_is_no_longer_accepted_is_kept_aside() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let saved = json!({"version": 1, "workers": [
        {"id": "good", "endpoints": [{"address": "127.0.0.1:8001"}]},
        {"id": "bad", "endpoints": [{"address": "127.0.0.1:8002", "dp_size": 0}]},
    ]});
    std::fs::write(state.join("workers.json"), saved.to_string()).unwrap();
    let service = start(dir.path()).await;
    assert_eq!(ids(&service).await, ["good"]);
    let ready = service.control("/readyz").await;
    assert_eq!(ready["warnings"][0]["code"], "saved_worker_refused");
    assert!(ready["warnings"][0]["detail"].as_str().unwrap().contains("dp_size"), "{ready}");
    assert_eq!(std::fs::read_to_string(state.join("workers.json.refused-1")).unwrap(), saved.to_string());
}

#[tokio::test]
async fn workers_of_the_config_file_need_no_api_and_are_not_saved() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    let listed = json!({"pools": [{"name": "default"}], "workers": [{"id": "listed", "endpoints": [{"address": "127.0.0.1:8001"}]}]});
    std::fs::write(&config, listed.to_string()).unwrap();
    let state = dir.path().join("state");
    let mut service = Rankpin::start(
        dir.path(),
        &["--config", config.to_str().unwrap(), "--state-dir", state.to_str().unwrap()],
    )
    .await;
    assert_eq!(ids(&service).await, ["listed"]);
    service.put("added", &worker(8002)).await;
    service.signal(libc::SIGKILL);
    service.ended().await;
    assert_eq!(ids(&start(dir.path()).await).await, ["added"], "the next life was given no config");
}
