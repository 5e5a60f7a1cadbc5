//! Speaks Envoy's discovery (v3, JSON): reads requests, renders clusters (CDS) and load assignments (EDS). Pure text work:
//! which workers there are, and which version a node has, is decided elsewhere.

use crate::declare::{EndpointSpec, Host, Tls};
use crate::state::{Endpoint, Worker, cluster_name};
use routing::contract::WorkerState;
use routing::hash::Phase;
use routing::header::cluster::POOL_PREFIX;
use routing::id::{Epoch, PoolName, WorkerId};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};

const CLUSTER_TYPE: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
const ASSIGNMENT_TYPE: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
const TLS_TYPE: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";

/// What can be discovered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// One cluster per worker endpoint.
    Cluster,
    /// One load assignment per pool.
    Endpoint,
}

impl Resource {
    /// Its type URL.
    #[must_use]
    pub const fn type_url(self) -> &'static str {
        match self {
            Self::Cluster => CLUSTER_TYPE,
            Self::Endpoint => ASSIGNMENT_TYPE,
        }
    }
}

/// A poll of one Envoy; field names as Envoy writes them and in camelCase, others ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct DiscoveryRequest {
    /// Version of the last answer Envoy accepted; empty at first.
    #[serde(alias = "versionInfo")]
    pub version_info: String,
    /// Who polls.
    pub node: Node,
    /// Load assignments wanted; empty means all.
    #[serde(alias = "resourceNames")]
    pub resource_names: Vec<String>,
    /// Kind of resource; may be left out, since the path says it.
    #[serde(alias = "typeUrl")]
    pub type_url: String,
    /// Set when Envoy refused the last answer.
    #[serde(alias = "errorDetail")]
    pub error_detail: Option<ErrorDetail>,
}

/// The polling Envoy.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its `node.id`.
    pub id: String,
}

/// Why an answer was refused (`google.rpc.Status`).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ErrorDetail {
    /// Envoy's words.
    pub message: String,
}

/// Writes a version so that another life of the service never mistakes it for its own. `health` is not acknowledged by
/// anyone, but an Envoy that holds another one must not be told that it has everything.
#[must_use]
pub fn version_text(epoch: Epoch, version: u64, health: u64) -> String {
    format!("{}.{version}.{health:x}", epoch.0)
}

/// The version a node has of *this* life of the service; 0 when it has none.
#[must_use]
pub fn acknowledged(epoch: Epoch, version_info: &str) -> u64 {
    let mut parts = version_info.split('.');
    let life = parts.next().and_then(|life| life.parse().ok());
    let version = parts.next().and_then(|version| version.parse().ok());
    version.filter(|_| life == Some(epoch.0) && parts.next().is_some()).unwrap_or(0)
}

/// Whether a node has what another life served: our versions start at 1, and a node that has nothing says nothing.
#[must_use]
pub fn is_of_another_life(epoch: Epoch, version_info: &str) -> bool {
    !version_info.is_empty() && acknowledged(epoch, version_info) == 0
}

/// One number for the health of all; equal health gives equal numbers within one life of the service.
#[must_use]
pub fn health(members: &[Member]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for member in members {
        (&member.worker, health_status(member.state)).hash(&mut hasher);
    }
    hasher.finish()
}

/// A worker as discovery shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub worker: WorkerId,
    /// Its pool.
    pub pool: PoolName,
    /// Which half of a split pool it is.
    pub phase: Phase,
    /// Share in weighted choices.
    pub weight: u32,
    /// Whether it may be used.
    pub state: WorkerState,
    /// Its endpoints, in declared order.
    pub endpoints: Vec<Endpoint>,
}

impl From<&Worker> for Member {
    fn from(worker: &Worker) -> Self {
        let spec = worker.spec();
        Self {
            worker: spec.id.clone(),
            pool: spec.pool.clone(),
            phase: spec.phase,
            weight: spec.weight,
            state: worker.state(),
            endpoints: worker.endpoints().to_vec(),
        }
    }
}

/// A whole answer.
#[must_use]
pub fn response(resource: Resource, version: &str, resources: Vec<Value>) -> Value {
    let mut response = json!({"version_info": version, "type_url": resource.type_url()});
    insert(&mut response, "resources", Value::Array(resources));
    response
}

/// One cluster per endpoint of every worker.
#[must_use]
pub fn clusters(members: &[Member]) -> Vec<Value> {
    let own = |member: &Member| {
        let named = member.endpoints.iter().enumerate();
        named
            .map(|(index, endpoint)| cluster(&cluster_name(&member.worker, index), &endpoint.spec))
            .collect::<Vec<_>>()
    };
    members.iter().flat_map(own).collect()
}

fn cluster(name: &str, endpoint: &EndpointSpec) -> Value {
    let (kind, host) = match &endpoint.address.host {
        Host::Ip(ip) => ("STATIC", ip.to_string()),
        Host::Name(name) => ("STRICT_DNS", name.to_string()),
    };
    let address = socket_address(&host, endpoint.address.port);
    let mut cluster = json!({
        "@type": CLUSTER_TYPE,
        "name": name,
        "type": kind,
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    });
    if matches!(endpoint.address.host, Host::Name(_)) {
        insert(&mut cluster, "dns_lookup_family", json!("V4_PREFERRED"));
    }
    if let Some(tls) = &endpoint.tls {
        insert(&mut cluster, "transport_socket", transport_socket(tls));
    }
    cluster
}

fn transport_socket(tls: &Tls) -> Value {
    let mut context = json!({"@type": TLS_TYPE});
    if let Some(sni) = &tls.sni {
        insert(&mut context, "sni", json!(sni));
    }
    if let Some(ca) = &tls.ca {
        let mut validation = json!({"trusted_ca": {"filename": ca}});
        if let Some(sni) = &tls.sni {
            let names = json!([{"san_type": "DNS", "matcher": {"exact": sni}}]);
            insert(&mut validation, "match_typed_subject_alt_names", names);
        }
        insert(&mut context, "common_tls_context", json!({"validation_context": validation}));
    }
    json!({"name": "envoy.transport_sockets.tls", "typed_config": context})
}

/// Load assignments of the named pool clusters, or of all `pools` when none is named. A pool without workers, or not there
/// at all, gets an empty one: Envoy would otherwise wait for it.
#[must_use]
pub fn assignments(pools: &[PoolName], members: &[Member], wanted: &[String]) -> Vec<Value> {
    let named = |name: &String| PoolName::parse(name.strip_prefix(POOL_PREFIX)?).ok();
    let asked: Vec<PoolName> = match wanted {
        [] => pools.to_vec(),
        names => names.iter().filter_map(named).collect(),
    };
    asked.iter().map(|pool| assignment(pool, members)).collect()
}

fn assignment(pool: &PoolName, members: &[Member]) -> Value {
    // Workers that only prefill answer no request: the fallback behind the endpoint list must not find them.
    let own = members.iter().filter(|m| m.pool == *pool && m.phase != Phase::Prefill);
    let endpoints: Vec<Value> =
        own.flat_map(|m| m.endpoints.iter().filter_map(|e| lb_endpoint(m, e))).collect();
    let localities = if endpoints.is_empty() { json!([]) } else { json!([{"lb_endpoints": endpoints}]) };
    json!({"@type": ASSIGNMENT_TYPE, "cluster_name": format!("{POOL_PREFIX}{pool}"), "endpoints": localities})
}

fn lb_endpoint(member: &Member, endpoint: &Endpoint) -> Option<Value> {
    let at = endpoint.resolved?;
    Some(json!({
        "endpoint": {"address": socket_address(&at.ip().to_string(), at.port())},
        "health_status": health_status(member.state),
        "load_balancing_weight": member.weight.max(1),
    }))
}

fn health_status(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Joining | WorkerState::Ready | WorkerState::Suspect => "HEALTHY",
        WorkerState::Draining => "DRAINING",
        WorkerState::Down => "UNHEALTHY",
    }
}

fn socket_address(host: &str, port: u16) -> Value {
    json!({"socket_address": {"address": host, "port_value": port}})
}

fn insert(object: &mut Value, key: &str, value: Value) {
    // Callers pass objects made by `json!` above.
    let object: Option<&mut Map<String, Value>> = object.as_object_mut();
    if let Some(object) = object {
        object.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declare::Address;
    use routing::contract::RankNumbering;

    fn member(id: &str, state: WorkerState, endpoints: Vec<Endpoint>) -> Member {
        let (worker, pool) = (WorkerId::parse(id).unwrap(), PoolName::parse("default").unwrap());
        Member { worker, pool, phase: Phase::Aggregated, weight: 3, state, endpoints }
    }

    fn endpoint(address: &str, tls: Option<Tls>) -> Endpoint {
        let address = Address::parse(address).unwrap();
        let resolved = address.socket();
        let spec =
            EndpointSpec { address, rank_numbering: RankNumbering::Global, dp_start: 0, dp_size: 1, tls };
        Endpoint { spec, resolved }
    }

    #[test]
    fn each_endpoint_is_a_cluster_of_its_own() {
        let tls = Tls { sni: Some("w.test".to_owned()), ca: Some("/etc/ca.pem".to_owned()) };
        let endpoints = vec![endpoint("10.0.0.1:8000", None), endpoint("w.test:8000", Some(tls))];
        let clusters = clusters(&[member("w", WorkerState::Ready, endpoints)]);
        assert_eq!(clusters[0]["name"], "rankpin-worker-w");
        assert_eq!(clusters[0]["type"], "STATIC");
        assert_eq!(clusters[0]["connect_timeout"], "1s");
        assert_eq!(clusters[1]["name"], "rankpin-worker-w.1");
        assert_eq!(clusters[1]["type"], "STRICT_DNS");
        let context = &clusters[1]["transport_socket"]["typed_config"];
        assert_eq!(context["sni"], "w.test");
        let validation = &context["common_tls_context"]["validation_context"];
        assert_eq!(validation["trusted_ca"]["filename"], "/etc/ca.pem");
        assert_eq!(validation["match_typed_subject_alt_names"][0]["matcher"]["exact"], "w.test");
    }

    #[test]
    fn a_pool_lists_resolved_endpoints_with_health_and_weight() {
        let pool = PoolName::parse("default").unwrap();
        let members = [
            member(
                "a",
                WorkerState::Ready,
                vec![endpoint("[::1]:8000", None), endpoint("lost.test:8000", None)],
            ),
            member("b", WorkerState::Down, vec![endpoint("10.0.0.2:8000", None)]),
            member("c", WorkerState::Draining, vec![endpoint("10.0.0.3:8000", None)]),
        ];
        let all = assignments(&[pool], &members, &[]);
        let listed = all[0]["endpoints"][0]["lb_endpoints"].as_array().unwrap();
        let shown: Vec<_> = listed
            .iter()
            .map(|e| {
                let at = &e["endpoint"]["address"]["socket_address"]["address"];
                (at, &e["health_status"], &e["load_balancing_weight"])
            })
            .collect();
        let expected =
            json!([["::1", "HEALTHY", 3], ["10.0.0.2", "UNHEALTHY", 3], ["10.0.0.3", "DRAINING", 3]]);
        assert_eq!(json!(shown), expected);
    }

    #[test]
    fn a_pool_nobody_knows_yet_is_empty_and_a_foreign_name_is_left_out() {
        let wanted = ["rankpin-pool-new".to_owned(), "other".to_owned()];
        let answer = assignments(&[], &[], &wanted);
        assert_eq!(answer.len(), 1);
        assert_eq!(
            (&answer[0]["cluster_name"], &answer[0]["endpoints"]),
            (&json!("rankpin-pool-new"), &json!([]))
        );
    }

    #[test]
    fn a_version_of_another_life_is_no_acknowledgement() {
        let text = version_text(Epoch(7), 12, 0xab);
        assert_eq!((text.as_str(), acknowledged(Epoch(7), &text)), ("7.12.ab", 12));
        for other in ["", "12", "7.12", "8.12.ab", "7..ab", "7.x.ab", ".12.ab"] {
            assert_eq!(acknowledged(Epoch(7), other), 0, "{other:?}");
            assert_eq!(is_of_another_life(Epoch(7), other), !other.is_empty(), "{other:?}");
        }
    }

    #[test]
    fn health_alone_makes_another_version() {
        let one = |state| health(&[member("w", state, Vec::new())]);
        assert_eq!(one(WorkerState::Joining), one(WorkerState::Ready), "both are healthy to Envoy");
        assert_ne!(one(WorkerState::Ready), one(WorkerState::Draining));
        assert_ne!(one(WorkerState::Ready), one(WorkerState::Down));
    }

    #[test]
    fn requests_are_read_in_both_spellings() {
        let snake = r#"{"version_info":"7.1","node":{"id":"n","cluster":"c"},"resource_names":["r"],"error_detail":{"code":13,"message":"no"}}"#;
        let camel = r#"{"versionInfo":"7.1","node":{"id":"n"},"resourceNames":["r"],"errorDetail":{"message":"no"},"later":1}"#;
        for text in [snake, camel] {
            let request: DiscoveryRequest = serde_json::from_str(text).unwrap();
            assert_eq!((request.version_info.as_str(), request.node.id.as_str()), ("7.1", "n"));
            assert_eq!(request.resource_names, ["r"]);
            assert_eq!(request.error_detail.unwrap().message, "no");
        }
    }
}
