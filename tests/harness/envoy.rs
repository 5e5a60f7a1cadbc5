//! A real Envoy as a child: started on free ports from a [`Bootstrap`], asked through its admin. Decides no config.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::artifacts;
use crate::bootstrap::Bootstrap;
use crate::child::Child;
use crate::wait::wait_for;

/// The admin answers at once or not at all.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    child: Child,
    admin: SocketAddr,
    listener: SocketAddr,
    http: reqwest::Client,
    name: String,
    folder: PathBuf,
    threads: u32,
}

impl Envoy {
    /// Starts one in `folder` (its files are called after `name`) with so many worker threads; returns once it listens.
    ///
    /// # Errors
    /// There is no Envoy, or it refuses the config: with what it printed.
    pub async fn start(name: &str, folder: &Path, bootstrap: &Bootstrap, threads: u32) -> Result<Self> {
        std::fs::write(folder.join(format!("{name}.json")), bootstrap.json())?;
        let http = reqwest::Client::builder().no_proxy().timeout(ADMIN_TIMEOUT).build()?;
        let (child, admin) = launch(name, folder, threads).await?;
        let (name, folder) = (name.to_owned(), folder.to_path_buf());
        let mut envoy = Self { child, admin, listener: admin, http, name, folder, threads };
        envoy.listens().await?;
        Ok(envoy)
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        self.child.kill();
    }

    /// Starts it again with the same config after it was killed; it listens elsewhere.
    ///
    /// # Errors
    /// As [`Envoy::start`].
    pub async fn start_again(&mut self) -> Result<()> {
        (self.child, self.admin) = launch(&self.name, &self.folder, self.threads).await?;
        self.listens().await
    }

    async fn listens(&mut self) -> Result<()> {
        let looked = wait_for("Envoy's listener", async || self.look().await.transpose()).await?;
        self.listener = looked?;
        Ok(())
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener
    }

    /// Its admin.
    #[must_use]
    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Everything it printed: its log and, where the config writes it there, the access log.
    #[must_use]
    pub fn log(&self) -> String {
        self.child.output()
    }

    /// The text of an admin page.
    ///
    /// # Errors
    /// The admin does not answer.
    pub async fn admin(&self, path: &str) -> Result<String> {
        let url = format!("http://{}{path}", self.admin);
        let answer = self.http.get(url).send().await.context("Envoy's admin does not answer")?;
        Ok(answer.text().await?)
    }

    /// All counters and gauges whose name contains `part`.
    ///
    /// # Errors
    /// The admin does not answer.
    pub async fn stats(&self, part: &str) -> Result<Vec<(String, u64)>> {
        // Envoy reads a regular expression, in which a dot fits itself as well; all of them would be slow to print.
        let text = self.admin(&format!("/stats?filter={part}")).await?;
        let pairs = text.lines().filter_map(|line| line.split_once(": "));
        let own = pairs.filter(|(name, _)| name.contains(part));
        Ok(own.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
    }

    /// A counter or gauge of one endpoint of a cluster, such as `cx_connect_fail` or `rq_total`; 0 while it is not known.
    ///
    /// # Errors
    /// The admin does not answer.
    pub async fn host_stat(&self, cluster: &str, host: SocketAddr, name: &str) -> Result<u64> {
        let (text, head) = (self.admin("/clusters").await?, format!("{cluster}::{host}::{name}::"));
        Ok(text.lines().find_map(|line| line.strip_prefix(&head)?.trim().parse().ok()).unwrap_or(0))
    }

    /// Connections that it has open to an endpoint, over all clusters.
    ///
    /// # Errors
    /// The admin does not answer.
    pub async fn connections_to(&self, host: SocketAddr) -> Result<u64> {
        let (text, stat) = (self.admin("/clusters").await?, format!("::{host}::cx_active::"));
        Ok(text.lines().filter_map(|line| line.split_once(&stat)?.1.trim().parse::<u64>().ok()).sum())
    }

    /// How many statistics there are, of any kind.
    ///
    /// # Errors
    /// The admin does not answer.
    pub async fn stat_count(&self) -> Result<usize> {
        Ok(self.admin("/stats").await?.lines().count())
    }

    /// One counter or gauge; 0 while it does not exist.
    ///
    /// # Errors
    /// The admin does not answer.
    pub async fn stat(&self, name: &str) -> Result<u64> {
        let all = self.stats(name).await?;
        Ok(all.into_iter().find(|(own, _)| own == name).map_or(0, |(_, value)| value))
    }

    /// One of the filter's own counters, without its prefix: `pinned`, `routed_held`, …
    ///
    /// # Errors
    /// The admin does not answer.
    pub async fn requests(&self, word: &str) -> Result<u64> {
        self.stat(&format!("wasmcustom.rankpin.requests.{word}")).await
    }

    /// Nothing while it runs.
    ///
    /// # Errors
    /// It ended; with its last lines.
    pub fn check_running(&mut self) -> Result<()> {
        self.child.check_running()
    }

    /// The listener's address once Envoy is live.
    async fn look(&mut self) -> Result<Option<SocketAddr>> {
        self.child.check_running()?;
        let live = self.admin("/ready").await.is_ok_and(|text| text.trim() == "LIVE");
        if !live {
            return Ok(None);
        }
        let listeners: Value = serde_json::from_str(&self.admin("/listeners?format=json").await?)?;
        let socket = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
        let port = socket["port_value"].as_u64().filter(|port| *port > 0);
        Ok(port.map(|port| format!("127.0.0.1:{port}").parse()).transpose()?)
    }
}

/// A new process, and where its admin is.
async fn launch(name: &str, folder: &Path, threads: u32) -> Result<(Child, SocketAddr)> {
    let (config, at) = (folder.join(format!("{name}.json")), folder.join(format!("{name}.admin")));
    // What an earlier process wrote is not this one's.
    let _ = std::fs::remove_file(&at);
    let mut command = Command::new(artifacts::envoy()?);
    command.arg("-c").arg(&config).arg("--admin-address-path").arg(&at);
    command.args(["--disable-hot-restart", "--concurrency", &threads.to_string()]);
    // Access logs of a test that failed shall be whole.
    command.args(["--file-flush-interval-msec", "100"]);
    let mut child = Child::spawn(name, command, &folder.join(format!("{name}.log")))?;
    let admin = wait_for("Envoy's admin", async || read_address(&mut child, &at).transpose()).await??;
    Ok((child, admin))
}

/// What `envoy --mode validate` says about a config.
///
/// # Errors
/// There is no Envoy.
pub fn validate(bootstrap: &Bootstrap, folder: &Path) -> Result<Output> {
    let config = folder.join("validate.json");
    std::fs::write(&config, bootstrap.json())?;
    let mut command = Command::new(artifacts::envoy()?);
    command.args(["--mode", "validate", "--disable-hot-restart", "-c"]).arg(&config);
    command.output().context("cannot run Envoy")
}

fn read_address(child: &mut Child, file: &Path) -> Result<Option<SocketAddr>> {
    child.check_running()?;
    let text = std::fs::read_to_string(file).unwrap_or_default();
    Ok(text.trim().parse().ok())
}
