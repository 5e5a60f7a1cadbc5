//! The real `rankpin` binary: what it prints, what it refuses, how it ends.

use crate::support::{PATIENCE, token_file, until};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// A running service on ports of its own choice; killed when dropped.
pub(crate) struct Rankpin {
    child: Child,
    pub(crate) data: String,
    pub(crate) control: String,
}

impl Rankpin {
    pub(crate) async fn start(dir: &Path, more: &[&str]) -> Self {
        let addr_file = dir.join("addresses.json");
        let _ = std::fs::remove_file(&addr_file);
        let log = std::fs::File::create(dir.join("log")).unwrap();
        let mut command = rankpin();
        command.args(["serve", "--data", "127.0.0.1:0", "--addr-file"]).arg(&addr_file);
        if !more.contains(&"--control") {
            command.args(["--control", "127.0.0.1:0"]);
        }
        command.args(more).stdout(Stdio::null()).stderr(log);
        let mut child = dies_with_us(&mut command).spawn().unwrap();
        let addresses: Value = until("the service listens", || {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "{}", std::fs::read_to_string(dir.join("log")).unwrap());
            let written = std::fs::read(&addr_file).ok();
            async move { serde_json::from_slice(&written?).ok() }
        })
        .await;
        let url = |name: &str| format!("http://{}", addresses[name].as_str().unwrap());
        Self { child, data: url("data"), control: url("control") }
    }

    pub(crate) async fn put(&self, id: &str, body: &Value) -> u16 {
        let request = client().put(format!("{}/v1/workers/{id}", self.control)).body(body.to_string());
        request.send().await.unwrap().status().as_u16()
    }

    pub(crate) async fn control(&self, path: &str) -> Value {
        client().get(format!("{}{path}", self.control)).send().await.unwrap().json().await.unwrap()
    }

    pub(crate) fn signal(&self, signal: libc::c_int) {
        let pid = libc::pid_t::try_from(self.child.id()).unwrap();
        // SAFETY: our own child, not waited for yet, so the id cannot have been given away.
        #[allow(unsafe_code)]
        let sent = unsafe { libc::kill(pid, signal) };
        assert_eq!(sent, 0);
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "the service does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Rankpin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rankpin() -> Command {
    Command::new(env!("CARGO_BIN_EXE_rankpin"))
}

/// A test that is killed leaves no service behind.
fn dies_with_us(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;
    // SAFETY: prctl alone runs between fork and exec; it allocates nothing and takes no lock.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    }
}

pub(crate) fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

fn run(args: &[&str]) -> Output {
    dies_with_us(rankpin().args(args)).output().unwrap()
}

fn refused(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn hash_prints_what_filter_and_service_compute() {
    let output = run(&["hash", "session-1"]);
    let id = routing::hash::session_id(b"", b"", "default", routing::hash::Phase::Aggregated, b"session-1");
    let expected = format!("session {id}\nrank_hash {}\n", routing::hash::rank_hash(b"session-1").0);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    let scoped = run(&["hash", "session-1", "--scope", "tenant"]);
    assert_ne!(String::from_utf8(scoped.stdout).unwrap(), expected);
}

#[tokio::test]
async fn explain_prints_what_would_become_of_a_request() {
    let dir = tempfile::tempdir().unwrap();
    let token = token_file(dir.path(), "0123456789abcdef");
    let service =
        Rankpin::start(dir.path(), &["--token-file", token.to_str().unwrap(), "--probe-interval-ms", "0"])
            .await;
    let put = client().put(format!("{}/v1/workers/w1", service.control)).bearer_auth("0123456789abcdef");
    let worker = json!({"endpoints": [{"address": "127.0.0.1:9", "dp_start": 4, "dp_size": 4}]});
    assert!(put.body(worker.to_string()).send().await.unwrap().status().is_success());
    let (config, body) = (dir.path().join("filter.json"), dir.path().join("body.json"));
    std::fs::write(&config, r#"{"session": {"sources": ["header:x-session-id", "body:/conversation"]}}"#)
        .unwrap();
    std::fs::write(&body, r#"{"conversation": "session-1"}"#).unwrap();
    let explain = |more: &[&str]| {
        let mut args =
            vec!["explain", "--service", &service.control, "--token-file", token.to_str().unwrap()];
        args.extend(["--config", config.to_str().unwrap()].iter().chain(more));
        dies_with_us(rankpin().args(&args)).output().unwrap()
    };
    let id = routing::hash::session_id(b"", b"", "default", routing::hash::Phase::Aggregated, b"session-1");
    let expected = format!(
        "key      header:x-session-id (session {id})\npool     default (aggregated)\noutcome  held\nchoice   w1 rank 5\nreason   least_loaded\n\n\
         WORKER  RANK  STATE    LOAD  SCORE  LEFT OUT BY\nw1      5     joining  0     0\n"
    );
    let output = explain(&["--header", "X-Session-Id: session-1"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{:?}", String::from_utf8(output.stderr));
    let output = explain(&["--body", body.to_str().unwrap(), "--json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["key"], json!({"source": "body:/conversation", "session": id}), "{shown}");
    let wrong = explain(&["--pool", "a b"]);
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert!(wrong.status.code() == Some(2) && said.contains("pool: "), "{said}");
    let nobody = run(&["explain", "--service", "http://127.0.0.1:9"]);
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
    assert!(refused(&["explain", "--header", "nonsense"]).contains("is not 'name: value'"));
}

#[test]
fn what_cannot_be_served_is_refused_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let open = refused(&["serve", "--data", "0.0.0.0:0"]);
    assert!(
        open.starts_with(
            "rankpin: --data 0.0.0.0:0 can be reached from other machines: give --token-file FILE"
        ),
        "{open}"
    );
    let short = token_file(dir.path(), "short");
    assert!(refused(&["serve", "--token-file", short.to_str().unwrap()]).contains("a token has at least 16"));
    let config = dir.path().join("config.json");
    std::fs::write(&config, r#"{"pools":[{"name":"a","ttl_s":0},{"nam":"b"}]}"#).unwrap();
    let faults = refused(&["serve", "--config", config.to_str().unwrap()]);
    for part in ["pools[0].ttl_s", "pools[1].name", "pools[1].nam"] {
        assert!(faults.contains(part), "{part} is missing in {faults}");
    }
    assert!(refused(&["serve", "--config", "/nonexistent.json"]).contains("/nonexistent.json"));
    assert!(refused(&["serve", "--probe-interval-ms", "x"]).contains("--probe-interval-ms"));
}

#[tokio::test]
async fn a_taken_port_is_a_failure_not_a_usage_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&["serve", "--data", &address, "--control", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains(&format!("cannot listen on {address}")));
}

#[tokio::test]
async fn a_reachable_listener_is_served_with_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let token = token_file(dir.path(), "0123456789abcdef");
    let service =
        Rankpin::start(dir.path(), &["--token-file", token.to_str().unwrap(), "--control", "0.0.0.0:0"])
            .await;
    let url = format!("{}/v1/workers", service.control.replace("0.0.0.0", "127.0.0.1"));
    assert_eq!(client().get(&url).send().await.unwrap().status().as_u16(), 401);
    assert_eq!(
        client().get(&url).bearer_auth("0123456789abcdef").send().await.unwrap().status().as_u16(),
        200
    );
}

#[tokio::test]
async fn a_signal_makes_it_unready_answers_watchers_and_ends_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let notice = ["--drain-notice-ms", "3000"];
    let mut service =
        Rankpin::start(dir.path(), &[&["--probe-interval-ms", "0"], &notice[..]].concat()).await;
    service.put("w", &json!({"endpoints": [{"address": "127.0.0.1:9"}]})).await;
    let readyz = format!("{}/readyz", service.control);
    assert_eq!(client().get(&readyz).send().await.unwrap().status().as_u16(), 200);
    let first: Value =
        client().get(format!("{}/v1/watch", service.data)).send().await.unwrap().json().await.unwrap();
    let query = format!(
        "epoch={}&after={}&topology={}&fleet={}&wait_ms=25000",
        first["epoch"], first["cursor"], first["topology"]["version"], first["fleet"]["version"]
    );
    let watching = tokio::spawn(client().get(format!("{}/v1/watch?{query}", service.data)).send());
    until("the watch waits", || async {
        let metrics =
            client().get(format!("{}/metrics", service.control)).send().await.unwrap().text().await.unwrap();
        metrics.contains("\nrankpin_watchers 1\n").then_some(())
    })
    .await;

    service.signal(libc::SIGTERM);
    let begun = Instant::now();
    let answered = tokio::time::timeout(PATIENCE, watching).await.unwrap().unwrap().unwrap();
    assert_eq!(answered.status().as_u16(), 200, "the long poll is answered, not cut");
    let unready = until("not ready", || async {
        // Refused means it ended already: the notice is long enough for that not to happen here.
        let status = client().get(&readyz).send().await.unwrap().status().as_u16();
        (status == 503).then_some(status)
    });
    assert_eq!(unready.await, 503);
    assert!(service.ended().await.success());
    // Not when the long poll would have ended.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// A request whose body does not come to its end.
async fn stuck(service: &Rankpin) -> tokio::net::TcpStream {
    use tokio::io::AsyncWriteExt;
    let mut stream =
        tokio::net::TcpStream::connect(service.data.trim_start_matches("http://")).await.unwrap();
    stream.write_all(b"POST /v1/route HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{").await.unwrap();
    stream
}

#[tokio::test]
async fn a_stuck_request_does_not_hold_up_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut service = Rankpin::start(dir.path(), &["--drain-notice-ms", "0"]).await;
    let _stuck = stuck(&service).await;
    service.signal(libc::SIGINT);
    let begun = Instant::now();
    assert!(service.ended().await.success());
    // Not when its body is given up, after ten seconds.
    assert!(begun.elapsed() < Duration::from_millis(9500), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut service = Rankpin::start(dir.path(), &["--drain-notice-ms", "3000"]).await;
    let _stuck = stuck(&service).await;
    service.signal(libc::SIGTERM);
    until("it is stopping", || async {
        let status =
            client().get(format!("{}/readyz", service.control)).send().await.unwrap().json::<Value>().await;
        (status.unwrap()["reasons"][0]["code"] == "stopping").then_some(())
    })
    .await;
    let begun = Instant::now();
    service.signal(libc::SIGTERM);
    service.ended().await;
    // Not when the stuck request would have been cut.
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn http2_with_prior_knowledge_is_spoken_too() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let dir = tempfile::tempdir().unwrap();
    let service = Rankpin::start(dir.path(), &[]).await;
    let mut stream =
        tokio::net::TcpStream::connect(service.data.trim_start_matches("http://")).await.unwrap();
    // Preface and an empty SETTINGS frame; the answer begins with a SETTINGS frame (type 4).
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut head = [0; 9];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut head)).await.unwrap().unwrap();
    assert_eq!(head[3], 4);
}

#[tokio::test]
async fn discovery_is_written_as_files_too() {
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("xds");
    let service = Rankpin::start(dir.path(), &["--xds-dir", files.to_str().unwrap()]).await;
    let read = |name: &str| serde_json::from_slice::<Value>(&std::fs::read(files.join(name)).ok()?).ok();
    let clusters = |count: usize| {
        until("the clusters are written", move || async move {
            let document = read("cds.json")?;
            (document["resources"].as_array()?.len() == count).then_some(document)
        })
    };
    clusters(0).await;
    service.put("w", &json!({"pool": "chat", "endpoints": [{"address": "127.0.0.1:9"}]})).await;
    assert_eq!(clusters(1).await["resources"][0]["name"], "rankpin-worker-w");
    let assignment = read("eds-chat.json").unwrap();
    assert_eq!(assignment["resources"].as_array().unwrap().len(), 1, "Envoy takes one assignment a file");
    assert_eq!(assignment["resources"][0]["cluster_name"], "rankpin-pool-chat");
    client().delete(format!("{}/v1/workers/w", service.control)).send().await.unwrap();
    clusters(0).await;
    assert_eq!(read("eds-chat.json").unwrap()["resources"][0]["endpoints"], json!([]));
}
