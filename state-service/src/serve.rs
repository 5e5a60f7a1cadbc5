//! The life of `rankpin serve`: start, the list of tasks, and the end. Knows the order of things, decides nothing about workers.

use crate::cli::{ArgsError, ServeArgs};
use crate::config;
use crate::declare::Faults;
use crate::http::{
    self,
    listener::{self, Patience},
};
use crate::persist::Store;
use crate::replicas::{self, Replicas};
use crate::service::{Service, Setup};
use crate::store::Store as SharedStore;
use crate::{probe, resolve, scrape, told, xds_files};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// How often the state compares its deadlines with the clock.
const TICK: Duration = Duration::from_millis(100);
/// How often an unsaved change (a write that failed, a drain that ended) is saved.
const SAVE: Duration = Duration::from_secs(1);
/// From the signal to the end, at most; requests that still run then are cut.
const STOP_MAX: Duration = Duration::from_millis(4500);
/// A task that panicked starts again after this pause.
const RESTART: Duration = Duration::from_millis(200);

/// Why the service could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The arguments cannot be served.
    #[error(transparent)]
    Args(#[from] ArgsError),
    /// The config file cannot be read.
    #[error("config {path}: {source}")]
    ConfigFile {
        /// As given.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The config says something that cannot be.
    #[error("config {path}:\n{errors}")]
    Config {
        /// As given.
        path: PathBuf,
        /// All of it.
        errors: Faults,
    },
    /// An address is taken, or not ours.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// As given.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file or folder of ours.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl ServeError {
    /// Whether another command line would help.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::Args(_) | Self::ConfigFile { .. } | Self::Config { .. })
    }
}

/// Serves until a signal ends it.
///
/// # Errors
/// [`ServeError`]: the service did not start.
pub async fn run(args: &ServeArgs) -> Result<(), ServeError> {
    take_all_descriptors();
    let mut signals = Signals::listen().map_err(|source| failed("signals", source))?;
    let service = set_up(args)?;
    join_replicas(args, &service).await?;
    let data = bind(args.data).await?;
    let control = bind(args.control).await?;
    if let (Some(replicas), Ok(address)) = (service.replicas(), data.local_addr()) {
        replicas.advertise_as(args.advertise.clone(), address).await;
    }
    announce(args, &data, &control).map_err(|source| failed("announcing the addresses", source))?;

    let (close, closing) = watch::channel(false);
    let mut listeners = JoinSet::new();
    let routers = [(data, http::data_router(&service)), (control, http::control_router(&service))];
    for (socket, router) in routers {
        listeners.spawn(listener::serve(socket, router, closing.clone(), Patience::SERVICE));
    }
    let _tasks = start_tasks(args, &service);

    signals.next().await;
    tracing::info!("stopping: not ready any more");
    service.stop();
    let end = async {
        sleep(Duration::from_millis(args.drain_notice_ms)).await;
        close.send_replace(true);
        while listeners.join_next().await.is_some() {}
    };
    tokio::select! {
        ended = timeout(STOP_MAX, end) => if ended.is_err() { tracing::warn!("requests still running were cut") },
        () = signals.next() => tracing::warn!("second signal: ending at once"),
    }
    service.save().await.map_err(|source| failed("saving the workers", source))
}

fn failed(what: &str, source: io::Error) -> ServeError {
    ServeError::Io { what: what.to_owned(), source }
}

fn set_up(args: &ServeArgs) -> Result<Arc<Service>, ServeError> {
    let token = args.token()?;
    let config = read_config(args.config.as_deref())?;
    let shown = || args.state_dir.as_deref().unwrap_or(Path::new("")).display().to_string();
    let store = Store::open(args.state_dir.as_deref()).map_err(|source| failed(&shown(), source))?;
    let loaded = store.load().map_err(|source| failed(&shown(), source))?;
    let service = Service::new(Setup { config, store, token, followers: args.followers() });
    service.restore(loaded).map_err(|source| failed(&shown(), source))?;
    Ok(Arc::new(service))
}

/// A store that is away now is no reason not to start; a URL that names none is.
async fn join_replicas(args: &ServeArgs, service: &Arc<Service>) -> Result<(), ServeError> {
    let Some(config) = args.shared_store(service.epoch)? else { return Ok(()) };
    let address = config.address();
    let store = SharedStore::open(&config).await.map_err(ArgsError::from)?;
    tracing::info!(store = %address, "sharing bindings and workers with other replicas");
    service.join_replicas(Arc::new(Replicas::new(store)));
    service.join_index(true);
    Ok(())
}

fn read_config(path: Option<&Path>) -> Result<config::ServiceConfig, ServeError> {
    let Some(path) = path else { return Ok(config::ServiceConfig::without_file()) };
    let text =
        std::fs::read(path).map_err(|source| ServeError::ConfigFile { path: path.to_path_buf(), source })?;
    config::parse(&text).map_err(|errors| ServeError::Config { path: path.to_path_buf(), errors })
}

async fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })
}

fn announce(args: &ServeArgs, data: &TcpListener, control: &TcpListener) -> io::Result<()> {
    let (data, control) = (data.local_addr()?, control.local_addr()?);
    if let Some(path) = &args.addr_file {
        let text = json!({"data": data, "control": control}).to_string();
        crate::persist::replace(path, text.as_bytes())?;
    }
    let mut out = io::stdout().lock();
    writeln!(out, "data {data}\ncontrol {control}")?;
    out.flush()?;
    tracing::info!(%data, %control, version = env!("CARGO_PKG_VERSION"), "listening");
    Ok(())
}

/// Every task that runs beside the listeners. Dropping the set ends them.
fn start_tasks(args: &ServeArgs, service: &Arc<Service>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let own = |service: &Arc<Service>| Arc::clone(service);
    let (ticking, saving, naming, writing, probing) =
        (own(service), own(service), own(service), own(service), own(service));
    tasks.spawn(keep("tick", move || tick(own(&ticking))));
    tasks.spawn(keep("save", move || save(own(&saving))));
    tasks.spawn(keep("resolve", move || resolve::run(own(&naming))));
    if let Some(dir) = args.xds_dir.clone() {
        tasks.spawn(keep("xds files", move || xds_files::run(own(&writing), dir.clone())));
    }
    let listening = own(service);
    tasks.spawn(keep("kv events", move || kv_events(own(&listening))));
    let asking = own(service);
    tasks.spawn(keep("told", move || ask_all(own(&asking))));
    if let Some(replicas) = service.replicas().cloned() {
        let sharing = own(service);
        tasks.spawn(keep("replicas", move || replicas::run(own(&sharing), Arc::clone(&replicas))));
    }
    let probe_ms = args.probe_interval_ms;
    if probe_ms > 0 {
        tasks.spawn(keep("probe", move || probe_all(own(&probing), probe_ms)));
    }
    let (scraping, scrape_ms) = (own(service), args.scrape_interval_ms);
    if scrape_ms > 0 {
        tasks.spawn(keep("scrape", move || scrape_all(own(&scraping), scrape_ms)));
    }
    tasks
}

/// Runs a task for ever: one panic in it must not leave the service deaf on that side.
async fn keep<F: Future<Output = ()> + Send + 'static>(name: &'static str, start: impl Fn() -> F) {
    loop {
        let mut one = JoinSet::new();
        one.spawn(start());
        if let Some(Err(error)) = one.join_next().await {
            tracing::error!(task = name, %error, "task failed, starting it again");
        }
        sleep(RESTART).await;
    }
}

async fn tick(service: Arc<Service>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        service.expire();
    }
}

async fn save(service: Arc<Service>) {
    loop {
        sleep(SAVE).await;
        if let Err(error) = service.save().await {
            tracing::error!(%error, "declared workers could not be saved; trying again");
        }
    }
}

async fn probe_all(service: Arc<Service>, interval_ms: u64) {
    if let Err(error) = probe::run(service, interval_ms).await {
        tracing::error!(%error, "no probes");
    }
}

async fn kv_events(service: Arc<Service>) {
    if let Err(error) = crate::kv_events::run::run(service).await {
        tracing::error!(%error, "no KV events");
    }
}

async fn ask_all(service: Arc<Service>) {
    if let Err(error) = told::run(service).await {
        tracing::error!(%error, "workers declared by their URL are not asked");
    }
}

async fn scrape_all(service: Arc<Service>, interval_ms: u64) {
    if let Err(error) = scrape::run(service, interval_ms).await {
        tracing::error!(%error, "no scrapes");
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Each Envoy thread and each probe is a socket: the soft limit of many systems (1,024) is soon too small, the hard one is not.
fn take_all_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if setrlimit(Resource::Nofile, raised).is_err() {
        tracing::warn!(limit = ?limit.current, "the limit of open files could not be raised");
    }
}
