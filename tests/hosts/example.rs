//! `examples/host.py`: two hosts kept in step through a cut.

use std::process::Command;
use std::time::Duration;

use e2e::child::Child;
use e2e::proxy::Proxy;
use e2e::scratch::Scratch;
use e2e::wait::wait_within;
use e2e::{Service, ServicePlan, artifacts};
use serde_json::{Value, json};

/// Far above what it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Starts a service with two workers that nobody asks anything.
pub(crate) async fn service(scratch: &Scratch) -> Service {
    let plan = ServicePlan { probe_interval_ms: 0, hosts: true, ..ServicePlan::default() };
    let service = Service::start(scratch.path(), &plan).await.unwrap();
    for (id, port) in [("w0", 1), ("w1", 2)] {
        let body = json!({"endpoints": [{"address": format!("127.0.0.1:{port}")}]}).to_string();
        let said = service.call("PUT", &format!("/v1/workers/{id}"), Some(&body)).await.unwrap();
        assert_eq!(said.status, 201, "{said:?}");
    }
    service
}

/// The example as a child; what it says goes to a file.
fn example(scratch: &Scratch, args: &[&str]) -> Child {
    let mut command = Command::new("python3");
    command.arg("-B").arg(artifacts::root().join("examples/host.py")).args(args);
    Child::spawn("host.py", command, &scratch.join("host.log")).unwrap()
}

/// Waits until the example has come to a stage; what it says there.
async fn stage(child: &mut Child, name: &str) -> Value {
    let what = format!("stage {name}");
    let said = wait_within(PATIENCE, &what, async || {
        // Ended first: what it said last is in its log then.
        let ended = child.exited();
        let output = child.output();
        let stages = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let said = stages.into_iter().find(|said| said["stage"] == name);
        assert!(said.is_some() || ended.is_none(), "ended before stage {name}:\n{output}");
        said
    });
    said.await.unwrap_or_else(|error| panic!("{error}:\n{}", child.output()))
}

/// Each binds half of 50,000. One is cut off in the middle; both go on, move and release each other's sessions, and bind the same ones.
#[tokio::test(flavor = "multi_thread")]
async fn two_hosts_lose_nothing_through_a_cut_echo_nothing_and_go_on_from_their_cursors() {
    let scratch = Scratch::new().unwrap();
    let service = service(&scratch).await;
    let proxy = Proxy::start(service.data()).await.unwrap();
    let (first, second) = (format!("http://{}", proxy.address()), format!("http://{}", service.data()));
    let args = ["demo", "--url", &first, "--second-url", &second, "--workers", "w0,w1", "--cut", "outside"];
    let mut child = example(&scratch, &args);
    stage(&mut child, "cut").await;
    let before = proxy.accepted();
    proxy.cut();
    let waiting = stage(&mut child, "mend").await["waiting"].as_u64().unwrap();
    assert!(waiting > 12_500, "the first host was not cut off: {waiting} wait");
    assert!(proxy.accepted() > before, "it did not try");
    proxy.mend();
    let done = stage(&mut child, "done").await;
    println!("{done}");
    assert_eq!(done["sessions"], 50_100);
    assert_eq!((&done["lost"], &done["own_heard"], &done["rejected"]), (&json!(0), &json!(0), &json!(0)));
    assert_eq!(done["snapshots"], json!([1, 1]), "the cursor was enough");
    assert_eq!(done["streams"], json!([2, 1]));
    assert_eq!(done["released"], 50);
    assert_eq!(service.metric("rankpin_sessions", &[]).await.unwrap(), 50_050.0);
    let told = service.metric("rankpin_host_bindings_told_total", &[]).await.unwrap();
    assert!(told <= 51_000.0, "each is told once: {told}");
}

/// A service that lost its memory answers 410: the host reads everything and tells what it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_lost_its_memory_is_told_what_a_host_has() {
    let scratch = Scratch::new().unwrap();
    let mut service = service(&scratch).await;
    let url = format!("http://{}", service.data());
    let mut child = example(
        &scratch,
        &["bind", "--url", &url, "--writer", "host-a", "--workers", "w0,w1", "--sessions", "3000"],
    );
    stage(&mut child, "bound").await;
    assert_eq!(service.metric("rankpin_sessions", &[]).await.unwrap(), 3000.0);
    service.restart().await.unwrap();
    let told = wait_within(PATIENCE, "3000 sessions", async || {
        let sessions = service.metric("rankpin_sessions", &[]).await.unwrap_or_default();
        (sessions >= 3000.0).then_some(sessions)
    });
    assert_eq!(told.await.unwrap(), 3000.0);
}

/// What the example says and how it ends.
async fn ended(child: &mut Child) -> (Option<i32>, String) {
    let status = wait_within(PATIENCE, "the example to end", async || child.exited()).await;
    let code = status.unwrap_or_else(|error| panic!("{error}:\n{}", child.output())).code();
    (code, child.output())
}

/// A service that lets no host in, and none at all: one line says so.
#[tokio::test(flavor = "multi_thread")]
async fn an_example_that_may_not_begin_says_why_in_one_line() {
    let scratch = Scratch::new().unwrap();
    let plan = ServicePlan { probe_interval_ms: 0, ..ServicePlan::default() };
    let service = Service::start(scratch.path(), &plan).await.unwrap();
    let url = format!("http://{}", service.data());
    let args = |verb| [verb, "--url", &url, "--writer", "host-a"];
    for (verb, more) in [("bind", ["--workers", "w0"].as_slice()), ("follow", &[])] {
        let (code, said) = ended(&mut example(&scratch, &[args(verb).as_slice(), more].concat())).await;
        assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains("409 hosts_excluded") && said.contains("--outside-hosts"), "{said}");
    }
    drop(service);
    // Nobody listens on port 1.
    let args = ["bind", "--url", "http://127.0.0.1:1", "--writer", "host-a", "--workers", "w0"];
    let (code, said) = ended(&mut example(&scratch, &args)).await;
    assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("refused"), "{said}");
}

/// Bindings to workers that nobody declared wait at the service: the example says which.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_says_what_is_parked() {
    let scratch = Scratch::new().unwrap();
    let service = service(&scratch).await;
    let url = format!("http://{}", service.data());
    let mut child = example(&scratch, &["demo", "--url", &url, "--workers", "w8,w9", "--sessions", "400"]);
    let said = wait_within(PATIENCE, "a word of it", async || {
        assert!(child.exited().is_none(), "{}", child.output());
        child.output().lines().find(|line| line.contains("parked")).map(str::to_owned)
    });
    let said = said.await.unwrap();
    assert!(said.starts_with("200 bindings") && said.contains("w8, w9"), "{said}");
}
