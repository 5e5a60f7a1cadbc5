//! The official OpenAI Python client works through Envoy as it works without: it is told another base URL and one header.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::{EngineSpec, Steering, WorldPlan, artifacts};
use serde_json::{Value, json};

/// Version of the client on the Python registry.
const VERSION: &str = "3.57.0";

#[tokio::test(flavor = "multi_thread")]
async fn chat_streaming_responses_embeddings_and_models() {
    let python = tokio::task::spawn_blocking(client_python).await.unwrap();
    for steering in [Steering::Cluster, Steering::Endpoints] {
        let engines = [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).from(4)];
        let world = WorldPlan::new(steering, &engines).start().await.unwrap();
        let base = format!("http://{}/v1", world.envoy().address());
        let python = python.clone();
        let said = tokio::task::spawn_blocking(move || run(&python, &base)).await.unwrap();
        for text in ["chat", "streamed", "response"] {
            assert!(!said[text].as_str().unwrap().is_empty(), "{text} is empty in {said}");
        }
        assert!(said["chunks"].as_u64().unwrap() > 2, "the stream came in one piece: {said}");
        assert!(said["cached_tokens"].as_u64().unwrap() > 0, "the second turn found nothing cached: {said}");
        assert_eq!(said["models"], json!(["tiny"]));
        assert_eq!(said["dimensions"], json!([64, 64]));
        assert_eq!(said["events"].as_array().unwrap().last().unwrap(), "response.completed");
        let slots = said["slots"].as_array().unwrap();
        assert!(
            slots[0][0].is_string() && slots.iter().all(|slot| *slot == slots[0]),
            "{steering:?}: {said}"
        );
    }
}

fn run(python: &Path, base: &str) -> Value {
    let script = artifacts::root().join("tests/live/openai_client.py");
    let mut command = Command::new(python);
    // A proxy of the machine is not for loopback.
    command.arg(script).arg(base).env("NO_PROXY", "*").env("no_proxy", "*");
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the client failed:\n{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The Python of an environment that has the client, made at the first run and kept under target/tools.
fn client_python() -> PathBuf {
    let folder = artifacts::tools().join(format!("openai-{VERSION}"));
    let (python, ready) = (folder.join("bin/python"), folder.join("ready"));
    fs::create_dir_all(artifacts::tools()).unwrap();
    // One at a time makes it; the others wait for the lock and find it made.
    let lock = File::create(artifacts::tools().join(format!("openai-{VERSION}.lock"))).unwrap();
    lock.lock().unwrap();
    if !ready.exists() {
        succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder));
        let package = format!("openai=={VERSION}");
        succeed(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--no-input", &package]));
        fs::write(ready, "").unwrap();
    }
    python
}

fn succeed(command: &mut Command) {
    let remedy =
        "this test needs python3 with venv (Debian: `apt-get install python3-venv`) and a Python registry";
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; {remedy}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}; {remedy}");
}
