//! From JSON to [`FilterConfig`]. Walks the document as a value, so that one bad field never hides the next.

use super::{ConfigErrors, FilterConfig, NoTopology, Steering, Trust, Watcher};
use crate::header;
use crate::id::PoolName;
use crate::session::{self, Source};
use crate::time::Millis;
use serde_json::{Map, Value};

/// Largest config text read, in bytes.
const CONFIG_BYTES_MAX: usize = 1 << 20;
/// Most key or scope sources: each costs up to a hostcall a request.
const SOURCES_MAX: usize = 64;

pub(super) fn parse(text: &[u8]) -> Result<FilterConfig, ConfigErrors> {
    let mut errors = ConfigErrors::default();
    let object = document(text, &mut errors);
    let mut root = Fields { object: &object, path: String::new(), errors: &mut errors };
    root.only(&[
        "service",
        "session",
        "hash_secret",
        "pool_by",
        "steering",
        "trust",
        "served_header",
        "on_no_topology",
        "pages",
        "watch",
        "tick_ms",
    ]);
    let tick = root.integer("tick_ms", 100, 10, 10_000);
    let hash_secret = root.text("hash_secret", "", 1024).into_bytes();
    let steering =
        root.one_of("steering", ("cluster", Steering::Cluster), ("endpoints", Steering::Endpoints));
    let on_no_topology = root.one_of(
        "on_no_topology",
        ("pass_through", NoTopology::PassThrough),
        ("503", NoTopology::Unavailable),
    );
    let trust = root.one_of("trust", ("nobody", Trust::Nobody), ("callers", Trust::Callers));
    let served_header = root.flag("served_header");
    let watcher = root.one_of("watch", ("elected", Watcher::Elected), ("singleton", Watcher::Singleton));
    let pool = pool_by(&mut root);
    let (service_cluster, service_token, route_deadline) = service(&mut root);
    let (sources, scope) = session_part(&mut root);
    let (page_count, page_bytes) = pages(&mut root);
    if !errors.0.is_empty() {
        return Err(errors);
    }
    Ok(FilterConfig {
        service_cluster,
        service_token,
        route_deadline,
        tick: Millis(tick),
        sources,
        scope,
        hash_secret,
        pool,
        steering,
        trust,
        served_header,
        on_no_topology,
        page_count,
        page_bytes,
        watcher,
    })
}

fn document(text: &[u8], errors: &mut ConfigErrors) -> Map<String, Value> {
    if text.len() > CONFIG_BYTES_MAX {
        errors.add("$", format!("is {} bytes long", text.len()), format!("at most {CONFIG_BYTES_MAX} bytes"));
        return Map::new();
    }
    if text.iter().all(u8::is_ascii_whitespace) {
        return Map::new();
    }
    match serde_json::from_slice(text) {
        Ok(Value::Object(object)) => object,
        Ok(_) => {
            errors.add("$", "is not a JSON object", "a JSON object");
            Map::new()
        }
        Err(error) => {
            errors.add("$", format!("is not JSON: {error}"), "a JSON object");
            Map::new()
        }
    }
}

fn service(root: &mut Fields<'_>) -> (String, Option<String>, Millis) {
    let object = root.object("service");
    let mut fields = root.inside("service", &object);
    fields.only(&["cluster", "token", "route_deadline_ms"]);
    let cluster = fields.text("cluster", header::cluster::SERVICE, 255);
    if cluster.is_empty() {
        fields.fault("cluster", "is empty", "the name of an Envoy cluster");
    }
    let token = fields.text("token", "", 4096);
    if !token.bytes().all(|b| b.is_ascii_graphic()) {
        fields.fault("token", "has a byte outside visible ASCII", "visible ASCII");
    }
    let deadline = fields.integer("route_deadline_ms", 30, 1, 10_000);
    (cluster, (!token.is_empty()).then_some(token), Millis(deadline))
}

fn session_part(root: &mut Fields<'_>) -> (Vec<Source>, Vec<Source>) {
    let object = root.object("session");
    let mut fields = root.inside("session", &object);
    fields.only(&["sources", "scope"]);
    let sources = fields.sources("sources").unwrap_or_else(session::default_sources);
    if sources.is_empty() {
        fields.fault(
            "sources",
            "is empty",
            "at least one source, or leave the field out for the default list",
        );
    }
    let scope = fields.sources("scope").unwrap_or_default();
    (sources, scope)
}

fn pages(root: &mut Fields<'_>) -> (u32, usize) {
    let object = root.object("pages");
    let mut fields = root.inside("pages", &object);
    fields.only(&["count", "bytes"]);
    let count = fields.integer("count", 4096, 16, 65_536);
    let bytes = fields.integer("bytes", 2048, 256, 65_536);
    (u32::try_from(count).unwrap_or(4096), usize::try_from(bytes).unwrap_or(2048))
}

fn pool_by(root: &mut Fields<'_>) -> Option<PoolName> {
    const ALLOWED: &str = "\"fixed NAME\", or leave the field out where there is one pool";
    let text = root.text("pool_by", "", 255);
    if text.is_empty() {
        return None;
    }
    let Some(name) = text.strip_prefix("fixed ") else {
        root.fault("pool_by", &format!("is {text:?}"), ALLOWED);
        return None;
    };
    PoolName::parse(name.trim())
        .map_err(|error| root.fault("pool_by", &format!("names a pool that {error}"), ALLOWED))
        .ok()
}

/// Longest text of the document that a fault repeats, in bytes.
const SHOWN_BYTES_MAX: usize = 80;

/// A value as a fault shows it.
fn shown(value: &Value) -> String {
    short(&value.to_string())
}

fn short(text: &str) -> String {
    if text.len() <= SHOWN_BYTES_MAX {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
    format!("{}…", text.get(..end).unwrap_or_default())
}

/// One JSON object and where it stands.
struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
    errors: &'a mut ConfigErrors,
}

impl Fields<'_> {
    fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn fault(&mut self, name: &str, problem: &str, allowed: &str) {
        let path = self.at(name);
        self.errors.add(path, problem, allowed);
    }

    fn only(&mut self, known: &[&str]) {
        for name in self.object.keys().filter(|name| !known.contains(&name.as_str())) {
            let path = self.at(&short(name));
            self.errors.add(path, "is not a known field", known.join(", "));
        }
    }

    fn object(&mut self, name: &str) -> Map<String, Value> {
        match self.object.get(name) {
            None => Map::new(),
            Some(Value::Object(object)) => object.clone(),
            Some(_) => {
                self.fault(name, "is not an object", "a JSON object");
                Map::new()
            }
        }
    }

    fn inside<'b>(&'b mut self, name: &str, object: &'b Map<String, Value>) -> Fields<'b> {
        Fields { object, path: self.at(name), errors: self.errors }
    }

    fn integer(&mut self, name: &str, default: u64, min: u64, max: u64) -> u64 {
        let Some(value) = self.object.get(name) else { return default };
        match value.as_u64() {
            Some(number) if (min..=max).contains(&number) => number,
            _ => {
                self.fault(
                    name,
                    &format!("is {}", shown(value)),
                    &format!("a whole number in {min}..={max}"),
                );
                default
            }
        }
    }

    fn text(&mut self, name: &str, default: &str, bytes_max: usize) -> String {
        match self.object.get(name) {
            None => default.to_owned(),
            Some(Value::String(text)) if text.len() <= bytes_max => text.clone(),
            Some(_) => {
                // The value is not repeated: it may be a secret.
                self.fault(
                    name,
                    "is not a text, or too long",
                    &format!("a text of at most {bytes_max} bytes"),
                );
                default.to_owned()
            }
        }
    }

    /// True or false; false by default.
    fn flag(&mut self, name: &str) -> bool {
        match self.object.get(name) {
            None => false,
            Some(Value::Bool(flag)) => *flag,
            Some(value) => {
                self.fault(name, &format!("is {}", shown(value)), "true or false");
                false
            }
        }
    }

    /// One of two words; the first is the default.
    fn one_of<T>(&mut self, name: &str, default: (&str, T), other: (&str, T)) -> T {
        match self.object.get(name) {
            None => default.1,
            Some(value) if value.as_str() == Some(default.0) => default.1,
            Some(value) if value.as_str() == Some(other.0) => other.1,
            Some(value) => {
                self.fault(
                    name,
                    &format!("is {}", shown(value)),
                    &format!("{:?} or {:?}", default.0, other.0),
                );
                default.1
            }
        }
    }

    fn sources(&mut self, name: &str) -> Option<Vec<Source>> {
        let list = match self.object.get(name)? {
            Value::Array(list) if list.len() <= SOURCES_MAX => list,
            _ => {
                self.fault(
                    name,
                    "is not a list, or too long",
                    &format!("a list of at most {SOURCES_MAX} sources"),
                );
                return None;
            }
        };
        let mut sources = Vec::with_capacity(list.len());
        for (index, value) in list.iter().enumerate() {
            match Source::parse(value.as_str().unwrap_or_default()) {
                Ok(source) => sources.push(source),
                Err(problem) => self.fault(
                    &format!("{name}[{index}]"),
                    &format!("is {}: {problem}", shown(value)),
                    session::SOURCE_FORMS,
                ),
            }
        }
        Some(sources)
    }
}
