//! A *shipped* Envoy config, made ready to run beside other tests: only addresses, ports, paths and deadlines are put in
//! place of the shipped ones, so that tests prove what people load. Starts nothing.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use routing::header::{self, cluster};
use serde_json::{Value, json};

use crate::artifacts;

mod token;

/// Port of the service's data plane in the shipped files.
const SERVICE_PORT: u64 = 7460;
/// How the wasm filter is typed.
const WASM_TYPE: &str = "envoy.extensions.filters.http.wasm.v3.Wasm";

/// The shipped ways to steer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// `envoy/static.yaml`
    Cluster,
    /// `envoy/dynamic.yaml`
    Endpoints,
    /// `envoy/agents.yaml`: as `Endpoints`, and keys are read in bodies.
    Agents,
    /// `envoy/kv.yaml`: as `Endpoints`, and prompts are read for a pool of policy `kv_aware`.
    Kv,
    /// `envoy/replicas.yaml`: as `Endpoints`, before several replicas of the service.
    Replicas,
    /// `envoy/prefill-decode.yaml`: as `Endpoints`, before a split fleet.
    Phases,
}

impl Steering {
    /// The shipped file.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::Cluster => "static.yaml",
            Self::Endpoints => "dynamic.yaml",
            Self::Agents => "agents.yaml",
            Self::Kv => "kv.yaml",
            Self::Replicas => "replicas.yaml",
            Self::Phases => "prefill-decode.yaml",
        }
    }
}

/// A config on its way to Envoy.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    document: Value,
}

impl Bootstrap {
    /// Reads a shipped file, points it at the built filter and frees its ports.
    ///
    /// # Errors
    /// The file is missing or is no YAML; the filter is not built.
    pub fn shipped(steering: Steering) -> Result<Self> {
        Self::shipped_for(steering, None)
    }

    /// The same for a service that wants this token.
    ///
    /// # Errors
    /// As [`Bootstrap::shipped`], and as [`Bootstrap::read_with_token`].
    pub fn shipped_for(steering: Steering, token: Option<&str>) -> Result<Self> {
        let path = artifacts::root().join("envoy").join(steering.file());
        let mut bootstrap = match token {
            Some(token) => Self::read_with_token(&path, token)?,
            None => Self::read(&path)?,
        };
        bootstrap.built()?;
        bootstrap.free_ports()?;
        Ok(bootstrap)
    }

    /// Reads a file as it is.
    ///
    /// # Errors
    /// It is missing or is no YAML.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(path, &text_of(path)?)
    }

    fn parse(path: &Path, text: &str) -> Result<Self> {
        let document =
            serde_saphyr::from_str(text).with_context(|| format!("{} is no YAML", path.display()))?;
        Ok(Self { document })
    }

    /// The config as JSON, which Envoy reads as well.
    #[must_use]
    pub fn json(&self) -> String {
        self.document.to_string()
    }

    /// The whole document, for edits only one test makes.
    pub fn document(&mut self) -> &mut Value {
        &mut self.document
    }

    /// The built modules of the filter, in place of those named.
    ///
    /// # Errors
    /// None is named, or one that is not built.
    pub fn built(&mut self) -> Result<()> {
        self.modules(artifacts::module)
    }

    /// The path of the filter, wherever it is named.
    ///
    /// # Errors
    /// It is named nowhere.
    pub fn wasm(&mut self, path: &Path) -> Result<()> {
        self.modules(|_| Ok(path.to_owned()))
    }

    /// Another path for each module, told by its file's name.
    fn modules(&mut self, path: impl Fn(&str) -> Result<PathBuf>) -> Result<()> {
        let (mut named, mut lacking) = (0, None);
        walk(&mut self.document, &mut |value| {
            let Some(filename) = value.pointer_mut("/local/filename").filter(|name| is_wasm(name)) else {
                return;
            };
            let own = filename.as_str().and_then(|own| Path::new(own).file_name()?.to_str());
            match path(own.unwrap_or_default()) {
                Ok(path) => *filename = json!(path),
                Err(error) => lacking = Some(error),
            }
            named += 1;
        });
        ensure!(named > 0, "no wasm filename in the config");
        lacking.map_or(Ok(()), Err)
    }

    /// Listener and admin on loopback, at ports the kernel chooses.
    ///
    /// # Errors
    /// There is no listener or no admin.
    pub fn free_ports(&mut self) -> Result<()> {
        let free = json!({"socket_address": {"address": "127.0.0.1", "port_value": 0}});
        *self.document.pointer_mut("/admin/address").context("no admin address in the config")? =
            free.clone();
        for listener in list(&mut self.document, "/static_resources/listeners")? {
            listener["address"] = free.clone();
        }
        Ok(())
    }

    /// Where the service's data plane is.
    ///
    /// # Errors
    /// The config names it nowhere.
    pub fn service(&mut self, data: SocketAddr) -> Result<()> {
        let mut named = 0;
        walk(&mut self.document, &mut |value| {
            let Some(socket) = value.get_mut("socket_address") else { return };
            if socket["port_value"] == SERVICE_PORT {
                *socket = socket_address(data);
                named += 1;
            }
        });
        ensure!(named > 0, "nothing at port {SERVICE_PORT} in the config");
        Ok(())
    }

    /// The service's replicas, the one asked first before the others.
    ///
    /// # Errors
    /// The config has no cluster of the service.
    pub fn replicas(&mut self, data: &[SocketAddr]) -> Result<()> {
        let clusters = list(&mut self.document, "/static_resources/clusters")?;
        let service = clusters.iter_mut().find(|one| one["name"] == cluster::SERVICE);
        let service = service.context("no cluster of the service")?;
        let by_priority = data.iter().enumerate().map(|(priority, address)| {
            let mut one = endpoints(&[*address])[0].take();
            one["priority"] = json!(priority);
            one
        });
        service["load_assignment"]["endpoints"] = by_priority.collect();
        Ok(())
    }

    /// Envoy's `node.id`.
    pub fn node(&mut self, id: &str) {
        self.document["node"]["id"] = json!(id);
        if self.document["node"]["cluster"].is_null() {
            self.document["node"]["cluster"] = json!("tests");
        }
    }

    /// The workers: one static cluster each where the config has such, and all of them behind the default cluster. None at
    /// all leaves the shipped ones.
    ///
    /// # Errors
    /// The config has no static clusters.
    pub fn workers(&mut self, workers: &[(String, SocketAddr)]) -> Result<()> {
        if workers.is_empty() {
            return Ok(());
        }
        let clusters =
            self.document.pointer_mut("/static_resources/clusters").context("no static clusters")?;
        let clusters = clusters.as_array_mut().context("clusters is no list")?;
        let is_worker =
            |one: &Value| one["name"].as_str().is_some_and(|name| name.starts_with(cluster::WORKER_PREFIX));
        let pattern = clusters.iter().find(|one| is_worker(one)).cloned();
        if let Some(pattern) = pattern {
            clusters.retain(|one| !is_worker(one));
            clusters.extend(workers.iter().map(|(id, address)| worker_cluster(&pattern, id, *address)));
        }
        let all: Vec<SocketAddr> = workers.iter().map(|(_, address)| *address).collect();
        for one in clusters.iter_mut().filter(|one| one["name"] == cluster::DEFAULT) {
            one["load_assignment"]["endpoints"] = endpoints(&all);
        }
        Ok(())
    }

    /// One more pool's cluster, made like that of pool `default`; without that one there are only workers' clusters.
    ///
    /// # Errors
    /// There are no static clusters.
    pub fn pool_cluster(&mut self, pool: &str) -> Result<()> {
        let [default, name] = ["default", pool].map(|pool| format!("{}{pool}", cluster::POOL_PREFIX));
        let clusters = list(&mut self.document, "/static_resources/clusters")?;
        let Some(pattern) = clusters.iter().find(|one| one["name"] == *default).cloned() else {
            return Ok(());
        };
        let mut made = pattern;
        made["name"] = json!(name);
        made["eds_cluster_config"]["service_name"] = json!(name);
        clusters.push(made);
        Ok(())
    }

    /// How long the filter waits for `route`, in milliseconds, whatever the pool.
    ///
    /// # Errors
    /// No plugin configuration is JSON.
    pub fn route_deadline(&mut self, ms: u64) -> Result<()> {
        self.plugin(|config| {
            let service = &mut config["service"];
            (service["route_deadline_ms"], service["route_prompt_deadline_ms"]) = (json!(ms), json!(ms));
        })
    }

    /// Neither a connection nor a body's next bytes are given up because a machine was slow.
    ///
    /// # Errors
    /// No cluster has a limit for connections, or no plugin configuration is JSON.
    pub fn patient(&mut self) -> Result<()> {
        self.replace("connect_timeout", &json!("20s"))?;
        self.plugin(|config| config["session"]["body_wait_ms"] = json!(20_000))
    }

    /// The listener of callers who may steer: their headers are left alone by the native stripping, and read by the filter.
    ///
    /// # Errors
    /// The config strips nothing, or configures no plugin.
    pub fn trusted(&mut self) -> Result<()> {
        let mut lists = 0;
        walk(&mut self.document, &mut |value| {
            if let Some(list) = value.get_mut("mutations").and_then(Value::as_array_mut) {
                list.retain(|one| !is_trusted(&one["remove"]));
                lists += 1;
            }
        });
        ensure!(lists > 0, "no native stripping in the config");
        self.plugin(|config| config["trust"] = json!("callers"))
    }

    /// Clients are told the slot that served them.
    ///
    /// # Errors
    /// No plugin configuration is JSON.
    pub fn served_header(&mut self) -> Result<()> {
        self.plugin(|config| config["served_header"] = json!(true))
    }

    /// A stream on which nothing moves ends after so long, as Envoy writes durations.
    ///
    /// # Errors
    /// The config has no such limit.
    pub fn idle_after(&mut self, duration: &str) -> Result<()> {
        self.replace("stream_idle_timeout", &json!(duration))
    }

    /// Most bytes of a body that Envoy keeps for a filter or a retry, on every listener.
    ///
    /// # Errors
    /// There are no listeners, or the config has no such limit.
    pub fn body_limit(&mut self, bytes: u64) -> Result<()> {
        for listener in list(&mut self.document, "/static_resources/listeners")? {
            listener["per_connection_buffer_limit_bytes"] = json!(bytes);
        }
        self.replace("request_body_buffer_limit", &json!(bytes))
    }

    /// How often Envoy tries a request anew.
    ///
    /// # Errors
    /// The config says nowhere.
    pub fn retries(&mut self, count: u32) -> Result<()> {
        self.replace("num_retries", &json!(count))
    }

    /// Puts a filter in front of the router, behind ours.
    ///
    /// # Errors
    /// There is no router.
    pub fn before_router(&mut self, filter: &Value) -> Result<()> {
        let mut put = 0;
        for listener in list(&mut self.document, "/static_resources/listeners")? {
            walk(listener, &mut |value| {
                let Some(filters) = value.get_mut("http_filters").and_then(Value::as_array_mut) else {
                    return;
                };
                filters.insert(filters.len().saturating_sub(1), filter.clone());
                put += 1;
            });
        }
        ensure!(put > 0, "no filter chain in the config");
        Ok(())
    }

    /// Statistics whose names begin so are not kept.
    pub fn without_stats(&mut self, prefix: &str) {
        self.document["stats_config"]["stats_matcher"]["exclusion_list"]["patterns"] =
            json!([{"prefix": prefix}]);
    }

    /// A value for every member of that name.
    fn replace(&mut self, name: &str, new: &Value) -> Result<()> {
        let mut named = 0;
        walk(&mut self.document, &mut |value| {
            if let Some(own) = value.get_mut(name) {
                own.clone_from(new);
                named += 1;
            }
        });
        ensure!(named > 0, "no {name} in the config");
        Ok(())
    }

    /// How often Envoy asks the service for workers, as Envoy writes durations.
    ///
    /// # Errors
    /// The config asks by no REST source.
    pub fn discovery_every(&mut self, delay: &str) -> Result<()> {
        self.replace("refresh_delay", &json!(delay))
    }

    /// Changes the configuration of every wasm plugin whose text is a JSON object.
    ///
    /// # Errors
    /// There is none.
    pub fn plugin(&mut self, mut change: impl FnMut(&mut Value)) -> Result<()> {
        let mut changed = 0;
        walk(&mut self.document, &mut |value| {
            let Some(configuration) = value.get_mut("configuration") else { return };
            let Some(text) = configuration["value"].as_str() else { return };
            let Ok(mut config @ Value::Object(_)) = serde_json::from_str::<Value>(text) else { return };
            change(&mut config);
            configuration["value"] = json!(config.to_string());
            changed += 1;
        });
        ensure!(changed > 0, "no plugin configuration with a JSON text");
        Ok(())
    }

    /// The text of every wasm plugin's configuration, whatever it is.
    ///
    /// # Errors
    /// There is none.
    pub fn plugin_text(&mut self, text: &str) -> Result<()> {
        let mut changed = 0;
        walk(&mut self.document, &mut |value| {
            if let Some(own) = value.get_mut("configuration").filter(|own| own["value"].is_string()) {
                own["value"] = json!(text);
                changed += 1;
            }
        });
        ensure!(changed > 0, "no plugin configuration");
        Ok(())
    }

    /// Envoy shows no body of a request that waits, as if the flag had been forgotten.
    pub fn without_bodies_shown(&mut self) {
        walk(&mut self.document, &mut |value| {
            if let Some(fields) = value.as_object_mut() {
                fields.remove("allow_on_headers_stop_iteration");
            }
        });
    }

    /// Takes the wasm filter out of everything; all else stays.
    pub fn without_filter(&mut self) {
        walk(&mut self.document, &mut |value| drop_wasm(value, "http_filters"));
        walk(&mut self.document, &mut |value| drop_wasm(value, "bootstrap_extensions"));
    }

    /// Takes the filter's upstream role out of the clusters; the downstream role stays.
    ///
    /// # Errors
    /// There are no static clusters.
    pub fn without_upstream_role(&mut self) -> Result<()> {
        for cluster in list(&mut self.document, "/static_resources/clusters")? {
            walk(cluster, &mut |value| drop_wasm(value, "http_filters"));
        }
        Ok(())
    }
}

fn text_of(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn list<'a>(document: &'a mut Value, pointer: &str) -> Result<&'a mut Vec<Value>> {
    let found = document.pointer_mut(pointer).and_then(Value::as_array_mut);
    found.with_context(|| format!("no list {pointer} in the config"))
}

/// Visits every value, parents first.
fn walk(value: &mut Value, visit: &mut impl FnMut(&mut Value)) {
    visit(value);
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| walk(item, visit)),
        Value::Object(fields) => fields.values_mut().for_each(|field| walk(field, visit)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn is_wasm(name: &Value) -> bool {
    name.as_str().is_some_and(|name| name.ends_with(".wasm"))
}

fn is_trusted(name: &Value) -> bool {
    name.as_str().is_some_and(|name| header::TRUSTED.contains(&name))
}

fn drop_wasm(value: &mut Value, field: &str) {
    if let Some(filters) = value.get_mut(field).and_then(Value::as_array_mut) {
        let is_ours = |one: &Value| {
            one.pointer("/typed_config/@type").and_then(Value::as_str).is_some_and(is_wasm_type)
        };
        filters.retain(|one| !is_ours(one));
    }
}

fn is_wasm_type(name: &str) -> bool {
    name.ends_with(WASM_TYPE) || name.ends_with("WasmService")
}

fn worker_cluster(pattern: &Value, id: &str, address: SocketAddr) -> Value {
    let name = format!("{}{id}", cluster::WORKER_PREFIX);
    let mut cluster = pattern.clone();
    cluster["load_assignment"] = json!({"cluster_name": name, "endpoints": endpoints(&[address])});
    cluster["name"] = json!(name);
    cluster
}

fn endpoints(addresses: &[SocketAddr]) -> Value {
    let endpoint =
        |address: &SocketAddr| json!({"endpoint": {"address": {"socket_address": socket_address(*address)}}});
    json!([{"lb_endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>()}])
}

fn socket_address(address: SocketAddr) -> Value {
    json!({"address": address.ip().to_string(), "port_value": address.port()})
}

#[cfg(test)]
mod tests;
