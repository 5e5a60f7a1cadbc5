//! How a service comes to be: from its parts, and from what an earlier life left on disk.

use super::{Hosts, Service, Tokenizers, Warning};
use crate::auth::Token;
use crate::chance::{Chance, Clock};
use crate::config::ServiceConfig;
use crate::declare::{self, Faults, WorkerSpec};
use crate::http::watch::WATCHERS_MAX;
use crate::metrics::HttpMetrics;
use crate::persist::{Loaded, Store};
use crate::state::{Command, Reply, State, StateConfig};
use serde_json::Value;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use tokio::sync::{Semaphore, broadcast, watch};

/// Workers waiting to be probed at once; past it the oldest is probed at its usual time.
const ALARMS_MAX: usize = 1024;

/// What a service is made of.
pub struct Setup {
    /// Pools, and workers declared in the config file.
    pub config: ServiceConfig,
    /// Where declared workers are kept.
    pub store: Store,
    /// What every request must bring.
    pub token: Option<Token>,
    /// Who else keeps its bindings.
    pub followers: Followers,
}

/// Who else keeps a service's bindings: one session has one authority, so it is one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Followers {
    /// Nobody: changes are not kept in order for anybody.
    #[default]
    Nobody,
    /// Hosts, by HTTP.
    Hosts,
    /// Replicas, by the store they share.
    Replicas,
}

fn state_config(config: ServiceConfig, followers: Followers) -> StateConfig {
    let mut config = StateConfig::new(config);
    if followers == Followers::Nobody {
        config.limits.journal_max = 0;
    }
    config
}

impl Service {
    /// A new life with the workers of its config.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let Setup { config, store, token, followers } = setup;
        let chance = Chance::from_system();
        let epoch = chance.epoch();
        let from_config = config.workers.clone();
        let (tokenizers, fault) = match Tokenizers::start(&config) {
            Ok(tokenizers) => (tokenizers, None),
            Err(error) => (Tokenizers::default(), Some(error)),
        };
        let service = Self {
            epoch,
            chance,
            token,
            http: HttpMetrics::default(),
            scrapes: crate::scrape::Counts::default(),
            kv_hub: std::sync::Arc::default(),
            watchers: Semaphore::new(WATCHERS_MAX),
            hosts: Hosts::new(followers),
            tokenizers,
            clock: Clock::start(),
            state: Mutex::new(State::new(epoch, state_config(config, followers))),
            waits: super::waits::Waits::default(),
            store,
            replicas: std::sync::OnceLock::new(),
            config_workers: from_config.iter().map(|spec| spec.id.clone()).collect(),
            changes: watch::Sender::new(0),
            members: watch::Sender::new(0),
            alarms: broadcast::Sender::new(ALARMS_MAX),
            stopping: watch::Sender::new(false),
            warnings: Mutex::default(),
            states: Mutex::default(),
            upstream_role_missing: AtomicU64::new(0),
            xds_rejections: AtomicU64::new(0),
        };
        if let Some(error) = fault {
            service.warn("tokenizers_not_started", error.to_string());
        }
        for spec in from_config {
            if let Err(reason) = service.take_back(spec) {
                service.warn("config_worker_refused", reason);
            }
        }
        service
    }

    /// Declares anew what an earlier life was told. What the config file says of the same worker goes first.
    ///
    /// # Errors
    /// What the system said when workers not accepted any more could not be copied aside: they would be lost.
    pub fn restore(&self, loaded: Loaded) -> io::Result<()> {
        if let Some(fault) = loaded.fault {
            self.warn("state_file_corrupt", fault);
        }
        let refused: Vec<String> =
            loaded.workers.iter().filter_map(|value| self.restore_one(value).err()).collect();
        if let Some(all_told) = loaded.earlier_life {
            self.apply(Command::EarlierLife { all_told });
        }
        if refused.is_empty() {
            return Ok(());
        }
        let aside =
            self.store.copy_aside()?.map(|path| format!("; the file was copied to {}", path.display()));
        let detail = format!("{}{}", refused.join("; "), aside.unwrap_or_default());
        self.warn("saved_worker_refused", detail);
        Ok(())
    }

    fn restore_one(&self, value: &Value) -> Result<(), String> {
        let mut faults = Faults::default();
        let spec = declare::worker(value, "worker", None, &mut faults);
        let Some(spec) = spec.filter(|_| faults.list.is_empty()) else { return Err(faults.to_string()) };
        if self.config_workers.contains(&spec.id) { Ok(()) } else { self.take_back(spec) }
    }

    fn take_back(&self, spec: WorkerSpec) -> Result<(), String> {
        match self.apply(Command::PutWorker { spec }) {
            Reply::Refused(error) => Err(error.to_string()),
            Reply::Done
            | Reply::Declared(_)
            | Reply::Route(_)
            | Reply::Reserved(_)
            | Reply::Later(_)
            | Reply::Applied(_)
            | Reply::Notes(_)
            | Reply::Watch(_) => Ok(()),
        }
    }

    fn warn(&self, code: &'static str, detail: String) {
        tracing::error!(code, %detail, "started with a fault");
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(Warning { code, detail });
    }
}
