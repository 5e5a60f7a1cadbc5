//! A real Redis or Valkey as a child: on a free port, in a folder of its own, with nothing on disk to come back to. It can be killed,
//! started again empty, and stopped in its tracks. Knows nothing of what is kept in it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Result, bail};
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, ToRedisArgs};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::artifacts;
use crate::child::Child;
use crate::scratch::Scratch;
use crate::wait::{PATIENCE, wait_for};

/// Below the ports that systems give to clients: nobody takes ours while the server is restarted.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// A cluster's nodes talk to each other here, so far above their port.
const BUS: u16 = 10_000;

/// A running server, or one that was killed.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    scratch: Scratch,
    port: u16,
    args: Vec<String>,
}

impl Redis {
    /// Starts one; returns once it answers.
    ///
    /// # Errors
    /// There is no server program, or it does not start: with what it printed.
    pub async fn start() -> Result<Self> {
        Self::start_with(&[]).await
    }

    /// As [`Self::start`], with settings that go before ours: `["--maxmemory", "10mb"]`.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_with(args: &[&str]) -> Result<Self> {
        let (scratch, port) = (Scratch::new()?, free_port()?);
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let child = spawn(scratch.path(), port, &args)?;
        let mut redis = Self { child, scratch, port, args };
        redis.until_it_answers().await?;
        Ok(redis)
    }

    /// A sentinel that watches `master` under a name.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn sentinel(name: &str, master: &Self) -> Result<Self> {
        let (scratch, port) = (Scratch::new()?, free_port()?);
        let config = scratch.join("sentinel.conf");
        std::fs::write(&config, format!("sentinel monitor {name} 127.0.0.1 {} 1\n", master.port))?;
        // A sentinel writes its config anew: it comes first, as a file.
        let args = vec![config.display().to_string(), "--sentinel".to_owned()];
        let child = spawn(scratch.path(), port, &args)?;
        let mut redis = Self { child, scratch, port, args };
        redis.until_it_answers().await?;
        Ok(redis)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Its URL without user and password.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Everything it printed since it was last started.
    #[must_use]
    pub fn log(&self) -> String {
        self.child.output()
    }

    /// Kills it as a crash would; its memory is gone.
    pub fn kill(&mut self) {
        self.child.kill();
    }

    /// Kills it and starts it again on the same port, empty unless `args` keep something; returns once it answers.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn restart(&mut self) -> Result<()> {
        self.kill();
        self.child = spawn(self.scratch.path(), self.port, &self.args)?;
        self.until_it_answers().await
    }

    /// Stops it in its tracks: connections stay, nothing is answered.
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

    /// One command, over a connection of its own.
    ///
    /// # Errors
    /// It does not answer, or with an error, or not in the shape asked for.
    pub async fn command<T: FromRedisValue>(&self, words: &[impl ToRedisArgs]) -> Result<T> {
        let config = AsyncConnectionConfig::new();
        let config = config.set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
        let client = Client::open(self.url())?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut command = Cmd::new();
        for word in words {
            command.arg(word);
        }
        Ok(command.query_async(&mut connection).await?)
    }

    async fn until_it_answers(&mut self) -> Result<()> {
        let (child, address) = (&mut self.child, SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)));
        wait_for("Redis", async || match child.check_running() {
            Err(ended) => Some(Err(ended)),
            Ok(()) => answers(address).await.then_some(Ok(())),
        })
        .await?
    }
}

/// Any answer will do: one that wants a password says so.
async fn answers(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(address).await else { return false };
    let mut first = [0; 1];
    stream.write_all(b"PING\r\n").await.is_ok() && stream.read_exact(&mut first).await.is_ok()
}

fn spawn(folder: &Path, port: u16, args: &[String]) -> Result<Child> {
    let mut command = Command::new(artifacts::redis()?);
    let (port, dir) = (port.to_string(), folder.display().to_string());
    command.args(args).args(["--port", &port, "--bind", "127.0.0.1", "--dir", &dir, "--daemonize", "no"]);
    if !args.iter().any(|arg| arg == "--sentinel") {
        command.args(["--save", ""]);
        if !args.iter().any(|arg| arg == "--appendonly") {
            command.args(["--appendonly", "no"]);
        }
    }
    Child::spawn("redis", command, &folder.join("redis.log"))
}

/// A port that is free now, as is its bus.
fn free_port() -> Result<u16> {
    // Several tests of one process, and several processes: each begins elsewhere.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let span = PORTS.end - PORTS.start;
    let own = u16::try_from(std::process::id() * 97 % u32::from(span))?;
    for _ in 0..span {
        let port = PORTS.start + (own + NEXT.fetch_add(1, Ordering::Relaxed) % span) % span;
        if [port, port + BUS].iter().all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()) {
            return Ok(port);
        }
    }
    bail!("no port between {} and {} is free", PORTS.start, PORTS.end)
}
