//! A fake engine as a child: what it was asked, and which faults it shall have. Knows its control calls, not its insides.

mod group;
mod kv;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::artifacts;
use crate::child::Child;
use crate::held::Held;
use crate::wait::wait_for;

pub use group::EngineGroup;
pub use kv::KvRank;

const TIMEOUT: Duration = Duration::from_secs(30);

/// How an engine counts ranks in the rank header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// From 0 inside the engine.
    Local,
    /// As declared.
    Global,
}

impl Numbering {
    const fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Global => "global",
        }
    }
}

/// What an engine is started as; its name is its worker id as well.
#[derive(Clone, Debug)]
pub struct EngineSpec {
    /// `x-engine-name` and worker id.
    pub name: String,
    /// Ranks behind the port.
    pub ranks: u32,
    /// Global number of the first rank.
    pub dp_start: u32,
    /// How the rank header counts.
    pub numbering: Numbering,
    /// More arguments of the program.
    pub more: Vec<String>,
    /// More fields of its declaration, `engine` among them.
    pub declared: Map<String, Value>,
}

impl EngineSpec {
    /// So many ranks from 0, counted globally.
    #[must_use]
    pub fn new(name: &str, ranks: u32) -> Self {
        let (more, declared) = (Vec::new(), Map::from_iter([("engine".to_owned(), json!("vllm"))]));
        Self { name: name.to_owned(), ranks, dp_start: 0, numbering: Numbering::Global, more, declared }
    }

    /// Ranks start there.
    #[must_use]
    pub fn from(mut self, dp_start: u32) -> Self {
        self.dp_start = dp_start;
        self
    }

    /// The rank header counts so.
    #[must_use]
    pub fn numbered(mut self, numbering: Numbering) -> Self {
        self.numbering = numbering;
        self
    }

    /// It is that engine (`vllm`, `sglang`, `trtllm`) in that version, and is declared so.
    #[must_use]
    pub fn engine(self, engine: &str, version: &str) -> Self {
        let spec = self.with(&["--engine", engine, "--engine-version", version]);
        spec.declaring("engine", json!(engine)).declaring("engine_version", json!(version))
    }

    /// It computes prompts for others.
    #[must_use]
    pub fn prefills(self) -> Self {
        self.with(&["--role", "prefill"]).declaring("phase", json!("prefill"))
    }

    /// It has prompts computed by the one that a request names.
    #[must_use]
    pub fn decodes(self) -> Self {
        self.with(&["--role", "decode"]).declaring("phase", json!("decode"))
    }

    /// It publishes cache events and replays them, each rank on free ports of its own; see [`Engine::kv_events`]. Its declaration
    /// says nothing of them: [`EngineSpec::declaring`] `kv_events` `discover`, or [`Engine::kv_declared`].
    #[must_use]
    pub fn kv_events(self) -> Self {
        self.with(&["--kv-events", "tcp://127.0.0.1:0", "--kv-replay", "tcp://127.0.0.1:0"])
    }

    /// Its declaration has this field: `pool`, `models`, `labels`, `rank_in`, …
    #[must_use]
    pub fn declaring(mut self, field: &str, value: Value) -> Self {
        self.declared.insert(field.to_owned(), value);
        self
    }

    /// More arguments.
    #[must_use]
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.more.extend(arguments.iter().map(|&one| one.to_owned()));
        self
    }
}

/// A request as an engine saw it.
#[derive(Clone, Debug, Deserialize)]
pub struct Seen {
    /// Method.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Headers in order.
    pub headers: Vec<(String, String)>,
    /// SHA-256 of the body, in hex.
    pub body_sha256: String,
    /// Length of the body.
    pub body_bytes: usize,
    body_base64: Option<String>,
    /// The rank header as it came.
    pub rank_header: Option<String>,
    /// What the body says of a rank, as `NAME=VALUE`; the name is SGLang's newer one if it has both.
    pub rank_in_body: Option<String>,
    /// Global number of the rank that served.
    pub rank: Option<u32>,
    /// The conversation that chose it, at a TensorRT-LLM.
    pub conversation: Option<String>,
    /// Status answered.
    pub status: Option<u16>,
    /// Tokens of its prompts.
    pub prompt_tokens: Option<u64>,
    /// Of those, found in the rank's cache.
    pub cached_tokens: Option<u64>,
}

impl Seen {
    /// Every value of a header.
    #[must_use]
    pub fn values(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str()).collect()
    }

    /// The body, unless it was too large to be kept.
    #[must_use]
    pub fn body(&self) -> Option<Vec<u8>> {
        BASE64_STANDARD.decode(self.body_base64.as_ref()?).ok()
    }
}

/// A running engine.
#[derive(Debug)]
pub struct Engine {
    child: Child,
    spec: EngineSpec,
    address: SocketAddr,
    control: SocketAddr,
    http: reqwest::Client,
    /// Its port once it was killed.
    held: Option<Held>,
}

impl Engine {
    /// Starts it in `folder`; returns once it listens.
    ///
    /// # Errors
    /// It is not built or ended at once: with what it printed.
    pub async fn start(folder: &Path, spec: EngineSpec) -> Result<Self> {
        let at = folder.join(format!("{}.addr", spec.name));
        let mut command = Command::new(artifacts::program("fake-engine")?);
        if !spec.more.iter().any(|argument| argument == "--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.args(["--control", "127.0.0.1:0", "--name", &spec.name, "--ranks", &spec.ranks.to_string()]);
        command.args(["--dp-start", &spec.dp_start.to_string(), "--numbering", spec.numbering.word()]);
        command.args(&spec.more).arg("--addr-file").arg(&at);
        let mut child = Child::spawn(&spec.name, command, &folder.join(format!("{}.log", spec.name)))?;
        let looked = wait_for("an engine's address", async || {
            let text = child.check_running().map(|()| std::fs::read_to_string(&at).ok());
            text.transpose()
        });
        let text = looked.await??;
        let mut lines = text.lines().map(str::parse);
        let mut next = || lines.next().context("the engine wrote no address");
        let (address, control) = (next()??, next()??);
        let http = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build()?;
        Ok(Self { child, spec, address, control, http, held: None })
    }

    /// Its name: `x-engine-name` and worker id.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The body of the `PUT /v1/workers/NAME` that declares it as it is.
    #[must_use]
    pub fn declaration(&self) -> String {
        let mut declared = self.spec.declared.clone();
        declared.insert("endpoints".to_owned(), json!([self.endpoint()]));
        Value::Object(declared).to_string()
    }

    /// It as an endpoint of a declaration.
    #[must_use]
    pub fn endpoint(&self) -> Value {
        let EngineSpec { ranks, dp_start, numbering, declared, .. } = &self.spec;
        if declared["engine"] == "trtllm" {
            // It takes no rank over HTTP: to everybody outside it is one.
            return json!({"address": self.address.to_string(), "rank_numbering": "none"});
        }
        let numbering = if *ranks == 1 { "none" } else { numbering.word() };
        json!({"address": self.address.to_string(), "rank_numbering": numbering,
            "dp_start": dp_start, "dp_size": ranks})
    }

    /// What it was asked under `/v1/` and at `/generate`, oldest first: neither probes nor control calls, nor what the service asks for
    /// itself every now and then.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn requests(&self) -> Result<Vec<Seen>> {
        #[derive(Deserialize)]
        struct Listing {
            requests: Vec<Seen>,
        }
        let listing: Listing = serde_json::from_value(self.control("GET", "requests", None).await?)?;
        let is_services = |one: &Seen| one.values("user-agent").iter().any(|by| by.starts_with("rankpin/"));
        let counts =
            |one: &Seen| (one.path.starts_with("/v1/") || one.path == "/generate") && !is_services(one);
        Ok(listing.requests.into_iter().filter(counts).collect())
    }

    /// Forgets what it was asked.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn forget(&self) -> Result<()> {
        self.control("POST", "requests/clear", None).await.map(drop)
    }

    /// Orders a fault for the next `times` requests it fits, or for all until [`Engine::heal`].
    ///
    /// # Errors
    /// It does not know such a fault.
    pub async fn fault(&self, fault: &str, times: Option<u64>) -> Result<()> {
        self.control("POST", "fault", Some(json!({"fault": fault, "times": times}))).await.map(drop)
    }

    /// Takes all faults back.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn heal(&self) -> Result<()> {
        self.control("DELETE", "fault", None).await.map(drop)
    }

    /// What its metrics say of a rank (global number; `None`: all) instead of the truth: fields `running`, `waiting`,
    /// `kv_usage`, `absent`; until [`Engine::tell_the_truth`].
    ///
    /// # Errors
    /// It knows no such field.
    pub async fn gauges(&self, rank: Option<u32>, mut fields: Value) -> Result<()> {
        fields["rank"] = json!(rank);
        self.control("POST", "gauges", Some(fields)).await.map(drop)
    }

    /// Its metrics are its own again.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn tell_the_truth(&self) -> Result<()> {
        self.control("DELETE", "gauges", None).await.map(drop)
    }

    /// Closes its port: connections end, new ones are refused, and nobody else gets the port.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn close(&self) -> Result<()> {
        self.control("POST", "close", None).await.map(drop)
    }

    /// Opens its port again.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn open(&self) -> Result<()> {
        self.control("POST", "open", None).await.map(drop)
    }

    /// Kills it, as a crash would. Whoever still dials it is refused, and meets nobody else, while this lives.
    pub fn kill(&mut self) {
        self.child.kill();
        self.held = Held::hold(self.address);
    }

    async fn control(&self, method: &str, path: &str, body: Option<Value>) -> Result<Value> {
        let url = format!("http://{}/control/{path}", self.control);
        let mut request = self.http.request(reqwest::Method::from_bytes(method.as_bytes())?, url);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer =
            request.send().await.with_context(|| format!("engine {} does not answer", self.spec.name))?;
        ensure!(
            answer.status().is_success(),
            "engine {} refuses {path}: {}",
            self.spec.name,
            answer.status()
        );
        Ok(answer.json().await?)
    }
}
