//! The state service as a child, and its control API as tests use it. Judges no answer.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::header::{AUTHORIZATION, HeaderMap};
use routing::contract::{Topology, WorkerInfo};
use routing::hash::{Phase, session_id};
use serde_json::{Value, json};

use crate::artifacts;
use crate::child::Child;
use crate::client::Slot;
use crate::engine::Engine;
use crate::held::Held;
use crate::prometheus;
use crate::wait::wait_for;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Where it keeps its workers, in its folder.
const STATE: &str = "state";

/// How the service is started.
#[derive(Clone, Debug)]
pub struct ServicePlan {
    /// Policy of the pool `default`; `None` starts it without a config file, as the README does.
    pub policy: Option<&'static str>,
    /// More fields of the pool `default`, or others in place of those above; not null starts it with a config file.
    pub pool: Value,
    /// Other pools beside it, as the config file has them; any starts it with a config file.
    pub others: Vec<Value>,
    /// Milliseconds between probes; 0 probes never.
    pub probe_interval_ms: u64,
    /// URL of the store that it shares with others.
    pub store: Option<String>,
    /// Whether hosts may follow its bindings.
    pub hosts: bool,
    /// The token that both listeners want, by a token file.
    pub token: Option<&'static str>,
    /// Another program than the one built beside this: an earlier version.
    pub program: Option<PathBuf>,
}

impl Default for ServicePlan {
    fn default() -> Self {
        Self {
            policy: None,
            pool: Value::Null,
            others: Vec::new(),
            probe_interval_ms: 1000,
            store: None,
            hosts: false,
            token: None,
            program: None,
        }
    }
}

impl ServicePlan {
    /// The pools as the config file has them; none without a file.
    fn pools(&self) -> Option<Vec<Value>> {
        if self.policy.is_none() && self.pool.is_null() && self.others.is_empty() {
            return None;
        }
        let mut pool = json!({"name": "default", "affinity": "hard"});
        if let Some(policy) = self.policy {
            pool["policy"] = json!(policy);
        }
        for (name, value) in self.pool.as_object().into_iter().flatten() {
            pool[name] = value.clone();
        }
        Some([&[pool], &self.others[..]].concat())
    }
}

/// A running service.
#[derive(Debug)]
pub struct Service {
    child: Child,
    data: SocketAddr,
    control: SocketAddr,
    http: reqwest::Client,
    folder: PathBuf,
    plan: ServicePlan,
    /// Its ports while it is away.
    held: Vec<Held>,
}

/// An answer of the control API.
#[derive(Clone, Debug)]
pub struct Said {
    /// HTTP status.
    pub status: u16,
    /// JSON body; null when empty.
    pub body: Value,
}

impl Service {
    /// Starts it in `folder`; returns once it listens.
    ///
    /// # Errors
    /// It is not built or ended at once: with what it printed.
    pub async fn start(folder: &Path, plan: &ServicePlan) -> Result<Self> {
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let (child, data, control) = launch(folder, plan, [free, free]).await?;
        let http = client(plan.token)?;
        let (folder, plan) = (folder.to_path_buf(), plan.clone());
        Ok(Self { child, data, control, http, folder, plan, held: Vec::new() })
    }

    /// Kills it, as a crash would, and starts it again at the same addresses with the same files.
    ///
    /// # Errors
    /// As [`Service::start`].
    pub async fn restart(&mut self) -> Result<()> {
        self.kill();
        self.start_again().await
    }

    /// Deletes what it kept of its workers: a life started after this one has never heard of them.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn lose_file(&self) -> Result<()> {
        match std::fs::remove_dir_all(self.folder.join(STATE)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Starts it at the same addresses after it was killed.
    ///
    /// # Errors
    /// As [`Service::start`].
    pub async fn start_again(&mut self) -> Result<()> {
        let (child, data, control) = launch(&self.folder, &self.plan, [self.data, self.control]).await?;
        (self.child, self.data, self.control) = (child, data, control);
        Ok(())
    }

    /// Kills it and starts another version at the same addresses with the same files; `None` is the one built beside this.
    ///
    /// # Errors
    /// As [`Service::start`].
    pub async fn replace(&mut self, program: Option<PathBuf>) -> Result<()> {
        self.plan.program = program;
        self.restart().await
    }

    /// The folder where it keeps its workers.
    #[must_use]
    pub fn state_folder(&self) -> PathBuf {
        self.folder.join(STATE)
    }

    /// Where filters and Envoy ask.
    #[must_use]
    pub fn data(&self) -> SocketAddr {
        self.data
    }

    /// Where operators ask.
    #[must_use]
    pub fn control(&self) -> SocketAddr {
        self.control
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Everything it printed.
    #[must_use]
    pub fn log(&self) -> String {
        self.child.output()
    }

    /// Kills it, as a crash would. Its ports stay its own, for it to come back to or for somebody else who is told of them.
    pub fn kill(&mut self) {
        self.child.kill();
        self.held = [self.data, self.control].into_iter().filter_map(Held::hold).collect();
    }

    /// Stops it in its tracks: connections stay, nothing is answered, its clock goes on.
    ///
    /// # Errors
    /// It is gone.
    pub fn pause(&self) -> Result<()> {
        self.child.pause()
    }

    /// Lets a paused one go on.
    ///
    /// # Errors
    /// It is gone.
    pub fn resume(&self) -> Result<()> {
        self.child.resume()
    }

    /// One call of the control API.
    ///
    /// # Errors
    /// The service does not answer.
    pub async fn call(&self, method: &str, path: &str, body: Option<&str>) -> Result<Said> {
        let method = reqwest::Method::from_bytes(method.as_bytes())?;
        let mut request = self.http.request(method, format!("http://{}{path}", self.control));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_owned());
        }
        let answer = request.send().await.context("the service's control listener does not answer")?;
        let status = answer.status().as_u16();
        let text = answer.text().await?;
        Ok(Said { status, body: serde_json::from_str(&text).unwrap_or(Value::Null) })
    }

    /// Declares an engine as the worker of its name. Replicas have taken it once their store has, which may be slow.
    ///
    /// # Errors
    /// The service refuses it.
    pub async fn register(&self, engine: &Engine) -> Result<()> {
        let (path, declared) = (format!("/v1/workers/{}", engine.name()), engine.declaration());
        let said = wait_for("the store to take a worker", async || {
            let said = self.call("PUT", &path, Some(&declared)).await;
            let is_late = self.plan.store.is_some()
                && said.as_ref().is_ok_and(|said| said.body["code"] == "store_away");
            (!is_late).then_some(said)
        });
        let said = said.await??;
        ensure!((200..300).contains(&said.status), "worker {} is refused: {said:?}", engine.name());
        Ok(())
    }

    /// Removes a worker.
    ///
    /// # Errors
    /// The service refuses.
    pub async fn remove(&self, id: &str) -> Result<()> {
        let said = self.call("DELETE", &format!("/v1/workers/{id}"), None).await?;
        ensure!(said.status == 204, "worker {id} is not removed: {said:?}");
        Ok(())
    }

    /// State of a worker as the service sees it, in its word; `gone` when there is none.
    ///
    /// # Errors
    /// The service does not answer.
    pub async fn worker_state(&self, id: &str) -> Result<String> {
        let said = self.call("GET", &format!("/v1/workers/{id}"), None).await?;
        Ok(said.body["state"].as_str().unwrap_or("gone").to_owned())
    }

    /// A worker's requests in flight as reported, without those only reserved.
    ///
    /// # Errors
    /// The service does not answer, or knows no such worker.
    pub async fn in_flight(&self, id: &str) -> Result<u64> {
        let said = self.call("GET", &format!("/v1/workers/{id}"), None).await?;
        said.body["in_flight"].as_u64().with_context(|| format!("no in_flight in {said:?}"))
    }

    /// The gauges of every slot of an Envoy's topology, without Envoy's prefix: worker, rank, name. The rank is absent for
    /// requests that carry none.
    ///
    /// # Errors
    /// The service does not answer.
    pub async fn gauges(&self, node: &str) -> Result<Vec<(Slot, String)>> {
        let said = self.call("GET", &format!("/v1/topology?node={node}"), None).await?;
        let topology: Topology = serde_json::from_value(said.body["topology"].clone())?;
        Ok(topology.workers.iter().flat_map(gauges_of).collect())
    }

    /// Ids of the workers that the filters of Envoy `node` are told of.
    ///
    /// # Errors
    /// The service does not answer.
    pub async fn topology(&self, node: &str) -> Result<Vec<String>> {
        let said = self.call("GET", &format!("/v1/topology?node={node}"), None).await?;
        let workers = said.body["topology"]["workers"].as_array().cloned().unwrap_or_default();
        Ok(workers.iter().filter_map(|worker| worker["id"].as_str().map(str::to_owned)).collect())
    }

    /// The session of a key in pool `default` under an empty secret and scope.
    ///
    /// # Errors
    /// The service does not answer.
    pub async fn session(&self, key: &str) -> Result<Said> {
        let id = session_id(b"", b"", "default", Phase::Aggregated, key.as_bytes());
        self.call("GET", &format!("/v1/sessions/{id}"), None).await
    }

    /// Sum of a metric's samples with these labels (`key="value"`).
    ///
    /// # Errors
    /// The service does not answer.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> Result<f64> {
        let answer = self.http.get(format!("http://{}/metrics", self.control)).send().await?;
        Ok(prometheus::sum(&answer.text().await?, name, labels))
    }

    /// How many `route` calls were answered so far.
    ///
    /// # Errors
    /// The service does not answer.
    pub async fn routes(&self) -> Result<u64> {
        let labels = [r#"path="/v1/route""#, r#"method="POST""#];
        let sum = self.metric("rankpin_http_requests_total", &labels).await?;
        Ok(sum as u64)
    }
}

/// A client of the control API that brings the token, if there is one.
fn client(token: Option<&str>) -> Result<reqwest::Client> {
    let mut headers = HeaderMap::new();
    if let Some(token) = token {
        headers.insert(AUTHORIZATION, format!("Bearer {token}").parse()?);
    }
    Ok(reqwest::Client::builder().no_proxy().timeout(TIMEOUT).default_headers(headers).build()?)
}

/// Ranks in order, then one for requests without a rank.
fn gauges_of(worker: &WorkerInfo) -> Vec<(Slot, String)> {
    let mut ranks: Vec<Option<u32>> = worker
        .endpoints
        .iter()
        .flat_map(|one| (one.dp_start..one.dp_start + one.dp_size).map(Some))
        .collect();
    match ranks.len() {
        1 => ranks = vec![None],
        _ => ranks.push(None),
    }
    let Some(first) = worker.first_slot else { return Vec::new() };
    let slot = |rank| Slot { worker: worker.id.to_string(), rank };
    ranks
        .into_iter()
        .zip(first..)
        .map(|(rank, n)| (slot(rank), format!("rankpin.slot.{n}.in_flight")))
        .collect()
}

/// A new process, and where it listens.
async fn launch(
    folder: &Path,
    plan: &ServicePlan,
    at: [SocketAddr; 2],
) -> Result<(Child, SocketAddr, SocketAddr)> {
    let file = folder.join("service.addr");
    // What an earlier process wrote is not this one's.
    let _ = std::fs::remove_file(&file);
    let [data, control] = at.map(|address| address.to_string());
    let program = plan.program.clone().map_or_else(|| artifacts::program("rankpin"), Ok)?;
    let mut command = Command::new(program);
    command.args(["serve", "--data", &data, "--control", &control, "--addr-file"]).arg(&file);
    command.args(["--probe-interval-ms", &plan.probe_interval_ms.to_string()]);
    if plan.probe_interval_ms == 0 {
        // Workers that nobody probes are asked nothing at all: scripted ones would take a scrape for a request.
        command.args(["--scrape-interval-ms", "0"]);
    }
    match &plan.store {
        Some(url) => command.args(["--store", url]),
        None => command.arg("--state-dir").arg(folder.join(STATE)),
    };
    if plan.hosts {
        command.arg("--outside-hosts");
    }
    if let Some(token) = plan.token {
        let file = folder.join("token");
        std::fs::write(&file, token)?;
        command.arg("--token-file").arg(file);
    }
    if let Some(pools) = plan.pools() {
        let file = folder.join("service.json");
        std::fs::write(&file, json!({"pools": pools}).to_string())?;
        command.arg("--config").arg(file);
    }
    let mut child = Child::spawn("rankpin", command, &folder.join("service.log"))?;
    let looked = wait_for("the service's addresses", async || {
        child.check_running().and_then(|()| read_addresses(&file)).transpose()
    });
    let (data, control) = looked.await??;
    Ok((child, data, control))
}

fn read_addresses(file: &Path) -> Result<Option<(SocketAddr, SocketAddr)>> {
    let Ok(text) = std::fs::read_to_string(file) else { return Ok(None) };
    let value: Value = serde_json::from_str(&text)?;
    let address = |name: &str| -> Result<SocketAddr> {
        Ok(value[name].as_str().with_context(|| format!("no address {name} in {text}"))?.parse()?)
    };
    Ok(Some((address("data")?, address("control")?)))
}
