//! Runs the filter's own code on a described request, as a dry run: which key it finds, which pool, and what it would ask.
//!
//! Owns the description (JSON in, [`Question`] out, every fault at once with its path) and its run against a directory.
//! Decides nothing: the finding is `routing`'s, the placing the state's. Keys and bodies are looked at and forgotten.

use crate::declare::{self, Faults, Fields};
use routing::config::{FilterConfig, PoolBy, Trust};
use routing::contract::{Explanation, RouteReply, RouteRequest};
use routing::directory::Directory;
use routing::flow::{Effect, Env, Head, LocalReply, Next, RequestFlow};
use routing::header::{self, http};
use routing::id::{Epoch, PoolName};
use routing::session::RequestView;
use routing::time::Timestamp;
use routing::vm::Vm;
use serde_json::{Value, json};

/// Most headers of a described request.
const HEADERS_MAX: usize = 256;
/// Longest header name and value, in bytes.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// Longest path, in bytes.
const PATH_BYTES_MAX: usize = 16 << 10;
const METHOD_DEFAULT: &str = "POST";
const PATH_DEFAULT: &str = "/v1/chat/completions";

/// A request that is explained, and the filter it comes to.
#[derive(Clone, Debug)]
pub struct Question {
    config: FilterConfig,
    pool: Option<PoolName>,
    headers: Vec<(String, String)>,
    body: Option<String>,
}

/// What would become of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Shown {
    /// It would be placed, or not, so.
    Explained(Box<Explanation>),
    /// The filter would answer it by itself.
    Answered(LocalReply),
    /// The filter would let it pass as it is.
    Passed,
}

/// Reads a description: `{"config", "method", "path", "headers": [[name, value]], "body", "pool"}`, all optional.
///
/// # Errors
/// [`Faults`]: everything wrong with it, the filter's config included.
pub fn parse(body: &[u8]) -> Result<Question, Faults> {
    let mut faults = Faults::default();
    let value = declare::document(body, &mut faults);
    let question = value.and_then(|value| question(&value, &mut faults));
    faults.or(question)
}

fn question(value: &Value, faults: &mut Faults) -> Option<Question> {
    let mut fields = Fields::open("", value, faults)?;
    let config = config(fields.take("config"), faults);
    let method = fields.short_text(faults, "method", 32).unwrap_or_else(|| METHOD_DEFAULT.to_owned());
    let path = fields.short_text(faults, "path", PATH_BYTES_MAX).unwrap_or_else(|| PATH_DEFAULT.to_owned());
    let mut headers = vec![(http::METHOD.to_owned(), method), (http::PATH.to_owned(), path)];
    for (i, pair) in fields.list(faults, "headers", 0, HEADERS_MAX).iter().enumerate() {
        headers.extend(header(pair, &format!("headers[{i}]"), faults));
    }
    let body = fields.text(faults, "body").map(str::to_owned);
    let pool = fields.parsed(faults, "pool", declare::NAME_ALLOWED, PoolName::parse);
    fields.close(faults);
    let mut config = config?;
    if let Some(pool) = &pool {
        config.pool_by = PoolBy::Fixed(pool.clone());
    }
    if config.trust == Trust::Nobody {
        // There those headers are stripped before the filter runs.
        headers.retain(|(name, _)| !header::TRUSTED.contains(&name.as_str()));
    }
    Some(Question { config, pool, headers, body })
}

fn config(value: Option<&Value>, faults: &mut Faults) -> Option<FilterConfig> {
    let text = value.map_or_else(|| "{}".to_owned(), Value::to_string);
    let errors = match FilterConfig::parse(text.as_bytes()) {
        Ok(config) => return Some(config),
        Err(errors) => errors,
    };
    for error in errors.0 {
        let path = match error.path.as_str() {
            "$" => "config".to_owned(),
            path => format!("config.{path}"),
        };
        faults.add(&path, error.problem, &error.allowed);
    }
    None
}

/// `[name, value]`; the name in lower case.
fn header(pair: &Value, path: &str, faults: &mut Faults) -> Option<(String, String)> {
    let texts: Option<Vec<&str>> =
        pair.as_array().map(Vec::as_slice).unwrap_or_default().iter().map(Value::as_str).collect();
    let Some([name, value]) = texts.as_deref() else {
        faults.add(path, "is no pair of strings".to_owned(), "[\"name\", \"value\"]");
        return None;
    };
    if name.is_empty() || name.len() + value.len() > HEADER_BYTES_MAX {
        faults.add(
            path,
            format!("is {} bytes long", name.len() + value.len()),
            "a name, and at most 65536 bytes",
        );
        return None;
    }
    Some((name.to_ascii_lowercase(), (*value).to_owned()))
}

impl Question {
    /// The pool that was named, whatever the filter would find.
    #[must_use]
    pub const fn pool(&self) -> Option<&PoolName> {
        self.pool.as_ref()
    }

    /// Runs the filter on it. `answer` is asked at most once, and only for a dry run.
    pub fn run(
        &self,
        directory: Directory,
        (now, draw): (Timestamp, u64),
        answer: impl FnOnce(&RouteRequest) -> RouteReply,
    ) -> Shown {
        let config = FilterConfig { trust: Trust::Callers, ..self.config.clone() };
        let mut vm = Vm::new("", Epoch(draw | 1), draw);
        vm.directory = Some(directory);
        let mut env = Env { config: &config, vm: &mut vm, now };
        let mut flow = RequestFlow::default();
        let mut out = Vec::new();
        if flow.head(&mut env, self, &mut out) == Next::Read {
            let body = self.body.as_deref().unwrap_or_default();
            flow.body(&mut env, self, body.as_bytes(), true, &mut out);
        }
        let asked = out.iter().find_map(|effect| match effect {
            Effect::Route { request, .. } => Some((**request).clone()),
            _ => None,
        });
        if let Some(request) = asked.filter(|request| request.dry_run) {
            let reply = answer(&request);
            flow.routed(&mut env, self, Ok(reply), &mut out);
        }
        shown(out)
    }
}

fn shown(out: Vec<Effect>) -> Shown {
    let answered = out.into_iter().find_map(|effect| match effect {
        Effect::Respond(reply) => Some(reply),
        _ => None,
    });
    let Some(reply) = answered else { return Shown::Passed };
    match serde_json::from_str(&reply.body) {
        Ok(explained) if reply.status == 200 => Shown::Explained(explained),
        _ => Shown::Answered(reply),
    }
}

impl Shown {
    /// As it is answered.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Explained(explained) => serde_json::to_value(explained).unwrap_or_default(),
            Self::Answered(reply) => {
                let body: Value = serde_json::from_str(&reply.body).unwrap_or_default();
                json!({"answered": {"status": reply.status, "body": body}})
            }
            Self::Passed => json!({"passed": true}),
        }
    }
}

impl RequestView for Question {
    fn header(&self, name: &str) -> Option<Vec<u8>> {
        if name == header::DRY_RUN {
            return Some(b"1".to_vec());
        }
        self.headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone().into_bytes())
    }
}

impl Head for Question {
    fn page(&self, _n: u32) -> Option<Vec<u8>> {
        None
    }

    fn next_in_turn(&self, _n: u32) -> u64 {
        0
    }

    fn body_follows(&self) -> bool {
        self.body.is_some()
    }
}
