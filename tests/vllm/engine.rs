//! A real vLLM as a process group: its model, its command line, its readiness and its end. Judges nothing.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use e2e::artifacts;
use e2e::child::Child;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::guard::Guard;
use e2e::page::Page;

/// Ranks of the engine.
pub(crate) const RANKS: u32 = 2;
/// Tokens a block; on a CPU a multiple of 32.
pub(crate) const BLOCK_SIZE: u32 = 32;
/// The model's name on the wire.
pub(crate) const MODEL: &str = "tiny";
/// A loaded machine of two cores takes three minutes.
const START_MAX: Duration = Duration::from_secs(900);
/// Between two lines of progress, and two looks.
const PROGRESS: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(500);
/// The slowest answer is the first of a rank.
const TIMEOUT: Duration = Duration::from_secs(120);
/// It computes on one core, keeps 1 GB of cache a rank, fetches nothing and tells nobody; `/reset_prefix_cache` is a development call.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("VLLM_TARGET_DEVICE", "cpu"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("HF_HUB_OFFLINE", "1"),
    ("TRANSFORMERS_OFFLINE", "1"),
    ("VLLM_NO_USAGE_STATS", "1"),
    ("DO_NOT_TRACK", "1"),
    ("VLLM_SERVER_DEV_MODE", "1"),
];
const ARGUMENTS: &[&str] = &[
    "--load-format",
    "dummy",
    "--enforce-eager",
    "--max-model-len",
    "4096",
    "--max-num-seqs",
    "8",
    "--api-server-count",
    "1",
    "--enable-prompt-tokens-details",
];

/// See the module.
#[derive(Debug)]
pub(crate) struct Vllm {
    home: PathBuf,
    model: PathBuf,
    folder: PathBuf,
    address: SocketAddr,
    /// Of rank 0; rank 1 has the port after it.
    pub(crate) events: u16,
    pub(crate) replay: u16,
    http: reqwest::Client,
    running: Option<(Child, Guard)>,
    starts: u32,
}

/// A folder with what vLLM needs of a model whose weights do not matter: the stand-in's tokenizer and template, and a small shape.
pub(crate) fn make_model(folder: &Path) -> Result<PathBuf> {
    let (root, model) = (artifacts::root(), folder.join("model"));
    fs::create_dir_all(&model)?;
    for (from, name) in [
        ("tests/vllm/config.json", "config.json"),
        ("tests/engine/model/tokenizer.json", "tokenizer.json"),
        ("tests/engine/model/tokenizer_config.json", "tokenizer_config.json"),
    ] {
        fs::copy(root.join(from), model.join(name)).with_context(|| format!("cannot copy {from}"))?;
    }
    Ok(model)
}

impl Vllm {
    /// One that does not run yet, with ports that are free now.
    pub(crate) async fn new(home: PathBuf, model: PathBuf, folder: &Path) -> Result<Self> {
        let http = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build()?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_ports(1)?));
        let (events, replay) = (free_ports(RANKS)?, free_ports(RANKS)?);
        let folder = folder.to_path_buf();
        Ok(Self { home, model, folder, address, events, replay, http, running: None, starts: 0 })
    }

    /// Where it serves.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts it and waits until it serves.
    pub(crate) async fn start(&mut self, page: &Page) -> Result<()> {
        self.starts += 1;
        let mut command = self.command();
        command.envs(ENVIRONMENT.iter().copied()).process_group(0);
        let log = self.folder.join(format!("vllm-{}.log", self.starts));
        let child = Child::spawn("vllm", command, &log)?;
        let guard = Guard::over(child.pid())?;
        self.running = Some((child, guard));
        self.wait_ready(page).await
    }

    /// Ends it and its ranks, as a lost machine would.
    pub(crate) fn kill(&mut self) {
        if let Some((mut child, guard)) = self.running.take() {
            drop(guard);
            child.kill();
        }
    }

    fn command(&self) -> Command {
        let events = json!({
            "enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv-events",
            "endpoint": format!("tcp://*:{}", self.events), "replay_endpoint": format!("tcp://*:{}", self.replay),
        });
        // The only child that is not ours to slow down others with.
        let mut command = Command::new("nice");
        command.args(["-n", "5"]).arg(self.home.join("bin/vllm")).arg("serve").arg(&self.model);
        command.args([
            "--served-model-name",
            MODEL,
            "--host",
            "127.0.0.1",
            "--port",
            &self.address.port().to_string(),
        ]);
        command.args(["--data-parallel-size", &RANKS.to_string(), "--block-size", &BLOCK_SIZE.to_string()]);
        command.args(ARGUMENTS).args(["--kv-events-config", &events.to_string()]);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let own = std::iter::once(self.home.join("bin"));
        // It starts helpers of its environment by name.
        if let Ok(path) = std::env::join_paths(own.chain(std::env::split_paths(&path))) {
            command.env("PATH", path);
        }
        command
    }

    async fn wait_ready(&mut self, page: &Page) -> Result<()> {
        let (began, mut told) = (Instant::now(), Instant::now());
        while self.status("/health").await != Some(200) {
            let Some((child, _)) = &mut self.running else { bail!("vLLM is not started") };
            child.check_running()?;
            if began.elapsed() > START_MAX {
                bail!("vLLM does not serve after {} s:\n{}", START_MAX.as_secs(), child.output());
            }
            if told.elapsed() > PROGRESS {
                told = Instant::now();
                page.say(&format!("… {}", last_line(&child.output())));
            }
            sleep(LOOK).await;
        }
        page.say(&format!("vLLM serves after {} s", began.elapsed().as_secs()));
        Ok(())
    }

    async fn status(&self, path: &str) -> Option<u16> {
        let answer = self.http.get(format!("http://{}{path}", self.address)).send().await.ok()?;
        Some(answer.status().as_u16())
    }

    /// An answer of it.
    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        let answer = self.http.get(format!("http://{}{path}", self.address)).send().await?;
        Ok(answer.error_for_status()?.json().await?)
    }
}

/// The first of so many free ports in a row.
fn free_ports(count: u32) -> Result<u16> {
    for _ in 0..100 {
        let first = TcpListener::bind(("127.0.0.1", 0))?;
        let port = first.local_addr()?.port();
        let rest = (1..count)
            .map(|nth| TcpListener::bind(("127.0.0.1", port.checked_add(u16::try_from(nth).ok()?)?)).ok());
        if rest.collect::<Option<Vec<_>>>().is_some() {
            return Ok(port);
        }
    }
    bail!("no {count} free ports in a row")
}

/// What it printed last, short.
fn last_line(output: &str) -> String {
    let line = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("(nothing yet)");
    line.chars().take(140).collect()
}
