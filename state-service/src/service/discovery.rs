//! The service towards Envoy's discovery, probes and name resolution: what they should look at, and what they found.

use super::Service;
use crate::declare::{Host, Told};
use crate::http::problem::Problem;
use crate::probe::{Question, Target};
use crate::resolve::Name;
use crate::scrape;
use crate::state::{Command, Endpoint, Worker, XdsResource};
use crate::told;
use crate::xds::{self, DiscoveryRequest, ErrorDetail, Member, Resource};
use routing::contract::Engine;
use routing::header::cluster::POOL_PREFIX;
use routing::id::{PoolName, WorkerId};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

/// Everything discovery serves, at one version.
#[derive(Clone, Debug)]
pub struct DiscoveryView {
    /// As Envoy sends it back.
    pub version: String,
    /// All pools, by name.
    pub pools: Vec<PoolName>,
    /// All workers, by id.
    pub members: Vec<Member>,
    /// Whether some may be missing: this life has not heard of all workers yet.
    pub gathering: bool,
}

/// Pools of one poll that are looked at.
const POOLS_POLLED_MAX: usize = 1024;
/// Of a refusal no more is logged: it quotes what we sent.
const NACK_CHARS_MAX: usize = 300;
/// The first refusal and then every so many are logged: a node that refuses does so twice a second.
const NACKS_PER_LOG: u64 = 100;

impl Service {
    /// Takes a poll's acknowledgement and gives what there is.
    ///
    /// # Errors
    /// [`Problem`]: workers are still being declared, and an Envoy of another life must keep those it has.
    pub fn discover(&self, resource: Resource, request: &DiscoveryRequest) -> Result<DiscoveryView, Problem> {
        match &request.error_detail {
            Some(error) => self.rejected(resource, &request.node.id, error),
            None if !request.node.id.is_empty() => self.acknowledged(resource, request),
            None => {}
        }
        let view = self.discovery_view();
        if view.gathering && xds::is_of_another_life(self.epoch, &request.version_info) {
            return Err(gathering(view.members.len()));
        }
        Ok(view)
    }

    /// Everything discovery serves.
    pub fn discovery_view(&self) -> DiscoveryView {
        let state = self.lock();
        let members: Vec<Member> = state.workers().map(Member::from).collect();
        DiscoveryView {
            version: xds::version_text(self.epoch, state.xds_version(), xds::health(&members)),
            pools: state.pools().map(|pool| pool.name.clone()).collect(),
            members,
            gathering: state.is_gathering(),
        }
    }

    /// Every endpoint to probe.
    pub fn probe_targets(&self) -> BTreeSet<Target> {
        self.lock().workers().flat_map(|worker| each_endpoint(worker, target)).collect()
    }

    /// Whether nothing is sent to a worker any more; true of one that is not declared, too.
    pub fn is_out(&self, worker: &WorkerId) -> bool {
        self.lock().worker(worker).is_none_or(|worker| !worker.state().serves_bound())
    }

    /// Tells what a probe found.
    pub fn probed(&self, target: &Target, healthy: bool) {
        let (worker, endpoint) = (target.worker.clone(), target.endpoint);
        // A refusal means that the worker went away meanwhile.
        self.apply(Command::Probe { worker, endpoint, healthy });
    }

    /// Every endpoint whose engine may show gauges.
    pub fn scrape_targets(&self) -> BTreeSet<scrape::Target> {
        self.lock().workers().flat_map(|worker| each_endpoint(worker, scraped)).flatten().collect()
    }

    /// Tells what an engine shows.
    pub fn scraped(&self, target: &scrape::Target, gauges: scrape::Gauges) {
        let scrape::Gauges { slots, strays } = gauges;
        let (worker, endpoint) = (target.worker.clone(), target.endpoint);
        // A refusal means that the worker went away meanwhile.
        self.apply(Command::Gauges { worker, endpoint, slots, strays });
    }

    /// Every endpoint whose engine is asked what it is.
    pub fn asked(&self) -> BTreeSet<told::Asked> {
        self.lock().workers().flat_map(|worker| each_endpoint(worker, asked)).flatten().collect()
    }

    /// Takes what an engine told of itself.
    pub fn told(&self, asked: &told::Asked, told: Told) {
        let (worker, address) = (asked.worker.clone(), asked.address.clone());
        // A refusal means that the worker went away meanwhile.
        self.apply(Command::Told { worker, address, told });
    }

    /// Every declared host name.
    pub fn names(&self) -> Vec<Name> {
        self.lock().workers().flat_map(|worker| each_endpoint(worker, name)).flatten().collect()
    }

    /// Tells what a name stands for now.
    pub fn resolved(&self, name: &Name, address: Option<SocketAddr>) {
        let (worker, endpoint) = (name.worker.clone(), name.endpoint);
        self.apply(Command::Resolved { worker, endpoint, address });
        // Probes dial the resolved address, and find it through the member list.
        self.members.send_modify(|n| *n += 1);
    }

    fn acknowledged(&self, resource: Resource, request: &DiscoveryRequest) {
        let version = xds::acknowledged(self.epoch, &request.version_info);
        let polled = match resource {
            Resource::Cluster => vec![XdsResource::Cluster],
            Resource::Endpoint => self.polled_pools(&request.resource_names),
        };
        let returned = xds::is_of_another_life(self.epoch, &request.version_info);
        for resource in polled {
            let node = request.node.id.clone();
            self.apply(match returned {
                true => Command::NodeReturned { node, resource },
                false => Command::NodeAck { node, resource, version },
            });
        }
    }

    /// The pools a poll names; all known ones when it names none. A pool that does not exist yet counts too, or the first
    /// worker of a new pool would be shown before its Envoy has it.
    fn polled_pools(&self, names: &[String]) -> Vec<XdsResource> {
        if names.is_empty() {
            return self.lock().pools().map(|pool| XdsResource::Endpoint(pool.name.clone())).collect();
        }
        let pools = names.iter().filter_map(|name| name.strip_prefix(POOL_PREFIX)).take(POOLS_POLLED_MAX);
        pools.filter_map(|pool| PoolName::parse(pool).ok()).map(XdsResource::Endpoint).collect()
    }

    fn rejected(&self, resource: Resource, node: &str, error: &ErrorDetail) {
        let before = self.xds_rejections.fetch_add(1, Ordering::Relaxed);
        if before.is_multiple_of(NACKS_PER_LOG) {
            let reason: String = error.message.chars().take(NACK_CHARS_MAX).collect();
            tracing::warn!(node, ?resource, ?reason, "an Envoy refuses what discovery serves");
        }
    }
}

fn gathering(workers: usize) -> Problem {
    let detail = match workers {
        0 => "nothing is declared yet; keep what another life of the service told".to_owned(),
        n => format!("{n} workers are declared, more may follow; keep what another life of the service told"),
    };
    Problem::busy("nothing_declared", detail)
}

fn each_endpoint<T>(worker: &Worker, make: impl Fn(&Worker, usize, &Endpoint) -> T) -> Vec<T> {
    worker.endpoints().iter().enumerate().map(|(index, endpoint)| make(worker, index, endpoint)).collect()
}

fn target(worker: &Worker, index: usize, endpoint: &Endpoint) -> Target {
    let authority = endpoint.spec.address.to_string();
    Target {
        worker: worker.id().clone(),
        endpoint: index,
        dial: endpoint.resolved.map_or_else(|| authority.clone(), |address| address.to_string()),
        authority,
        question: if endpoint.spec.tls.is_some() { Question::Connect } else { Question::Health },
    }
}

fn scraped(worker: &Worker, index: usize, endpoint: &Endpoint) -> Option<scrape::Target> {
    let Target { worker: id, endpoint: index, dial, authority, question } = target(worker, index, endpoint);
    (question == Question::Health).then(|| scrape::Target {
        worker: id,
        endpoint: index,
        dial,
        authority,
        path: scrape::path(worker.spec().engine),
        ranks: scrape::Ranks::from(&endpoint.spec),
    })
}

/// `TensorRT-LLM` tells nothing of it, and what is custom nothing that we could read.
fn asked(worker: &Worker, _: usize, endpoint: &Endpoint) -> Option<told::Asked> {
    let asked = worker.spec().by_url && matches!(worker.spec().engine, Engine::Vllm | Engine::Sglang);
    asked.then(|| asked_at(worker, endpoint))
}

pub(super) fn asked_at(worker: &Worker, endpoint: &Endpoint) -> told::Asked {
    let address = endpoint.spec.address.clone();
    let dial = endpoint.resolved.map_or_else(|| address.to_string(), |address| address.to_string());
    told::Asked { worker: worker.id().clone(), dial, address }
}

fn name(worker: &Worker, index: usize, endpoint: &Endpoint) -> Option<Name> {
    let Host::Name(host) = &endpoint.spec.address.host else { return None };
    Some(Name {
        worker: worker.id().clone(),
        endpoint: index,
        host: host.to_string(),
        port: endpoint.spec.address.port,
        current: endpoint.resolved,
    })
}
