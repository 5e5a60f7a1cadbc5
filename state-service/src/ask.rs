//! `rankpin explain`: describes a request to a running service and prints what would become of it.
//!
//! Owns the description's making and the table. What is answered is the service's; see `explain.rs`.

use crate::auth::{Token, TokenError};
use crate::cli::ExplainArgs;
use serde_json::{Value, json};
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for the service.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is nothing to print.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    File {
        /// As given.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file that must be JSON is not.
    #[error("{path} is not JSON: {source}")]
    Json {
        /// As given.
        path: PathBuf,
        /// Where it ends to be.
        #[source]
        source: serde_json::Error,
    },
    /// No `name: value`.
    #[error("--header {given:?} is not 'name: value'")]
    Header {
        /// As given.
        given: String,
    },
    /// The token file is no use.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The service did not answer.
    #[error("{url}: {problem}")]
    Service {
        /// Whom was asked.
        url: String,
        /// What came of it.
        problem: String,
    },
    /// The service refused; each line one fault.
    #[error("{0}")]
    Refused(String),
}

impl AskError {
    /// Whether another command line would help.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        !matches!(self, Self::Service { .. })
    }
}

/// Asks, and returns what is printed.
///
/// # Errors
/// [`AskError`]: a file, a header or the service was no use.
pub async fn explain(args: &ExplainArgs) -> Result<String, AskError> {
    let answer = post(args, &description(args)?).await?;
    if args.json { Ok(format!("{answer:#}")) } else { Ok(table(&answer)) }
}

fn description(args: &ExplainArgs) -> Result<Value, AskError> {
    let config = args.config.as_deref().map(read_json).transpose()?;
    let headers = args.header.iter().map(|text| header(text)).collect::<Result<Vec<_>, _>>()?;
    let body = args.body.as_deref().map(read).transpose()?;
    let body = body.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(json!({
        "config": config, "method": args.method, "path": args.path, "headers": headers, "body": body, "pool": args.pool,
    }))
}

fn header(text: &str) -> Result<[&str; 2], AskError> {
    let pair = text.split_once(':').filter(|(name, _)| !name.trim().is_empty());
    let (name, value) = pair.ok_or_else(|| AskError::Header { given: text.to_owned() })?;
    Ok([name.trim(), value.trim()])
}

fn read(path: &Path) -> Result<Vec<u8>, AskError> {
    std::fs::read(path).map_err(|source| AskError::File { path: path.to_path_buf(), source })
}

fn read_json(path: &Path) -> Result<Value, AskError> {
    serde_json::from_slice(&read(path)?).map_err(|source| AskError::Json { path: path.to_path_buf(), source })
}

async fn post(args: &ExplainArgs, description: &Value) -> Result<Value, AskError> {
    let url = format!("{}/v1/explain", args.service.trim_end_matches('/'));
    let failed = |problem: String| AskError::Service { url: url.clone(), problem };
    let client = reqwest::Client::builder().timeout(PATIENCE).build().map_err(|e| failed(e.to_string()))?;
    let mut request = client.post(&url).json(description);
    if let Some(path) = &args.token_file {
        request = request.header(reqwest::header::AUTHORIZATION, Token::read(path)?.as_header());
    }
    let response = request.send().await.map_err(|e| failed(e.without_url().to_string()))?;
    let status = response.status();
    let answer: Value = response.json().await.map_err(|e| failed(e.without_url().to_string()))?;
    if status.is_success() { Ok(answer) } else { Err(AskError::Refused(refusal(&answer))) }
}

fn refusal(problem: &Value) -> String {
    let text =
        |value: &Value, name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut said = format!("{}: {}", text(problem, "title"), text(problem, "detail"));
    for fault in problem.get("errors").and_then(Value::as_array).into_iter().flatten() {
        let (path, what, allowed) = (text(fault, "path"), text(fault, "problem"), text(fault, "allowed"));
        // Writing to a string cannot fail.
        let _ = write!(said, "\n{path}: {what} (allowed: {allowed})");
    }
    said
}

/// The column that only prompts fill.
const CACHED: usize = 5;

/// An explanation for people.
#[must_use]
pub fn table(answer: &Value) -> String {
    if let Some(answered) = answer.get("answered") {
        return format!(
            "the filter answers {} itself: {}",
            plain(answered, "status"),
            answered.get("body").unwrap_or(&Value::Null)
        );
    }
    if answer.get("passed").is_some() {
        return "the filter lets it pass as it is".to_owned();
    }
    let mut said = format!("key      {}\n{}", key(answer), half(answer));
    if let Some(prefill) = answer.get("prefill") {
        said = format!("{said}\n\n{}", half(prefill));
        if prefill.get("choice").is_none() {
            said.push_str("\nnobody prefills: the worker that answers does it itself");
        }
    }
    said
}

fn key(answer: &Value) -> String {
    answer.get("key").map_or_else(
        || "none: the request belongs to no session".to_owned(),
        |key| format!("{} (session {})", plain(key, "source"), plain(key, "session")),
    )
}

fn half(answer: &Value) -> String {
    let choice = answer.get("choice").map_or_else(|| "none".to_owned(), target);
    let mut said = String::new();
    let _ = writeln!(said, "pool     {} ({})", plain(answer, "pool"), plain(answer, "phase"));
    let _ = writeln!(said, "outcome  {}", plain(answer, "outcome"));
    let _ = writeln!(said, "choice   {choice}");
    let _ = write!(said, "reason   {}\n\n{}", plain(answer, "reason"), candidates(answer));
    said
}

fn candidates(answer: &Value) -> String {
    let all = answer.get("candidates").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let by_prompt = all.iter().any(|one| one.get("overlap").is_some_and(Value::is_object));
    let heads = [
        "WORKER",
        "RANK",
        "STATE",
        "LOAD",
        if by_prompt { "COST" } else { "SCORE" },
        "CACHED",
        "LEFT OUT BY",
    ];
    let mut rows = vec![heads.map(str::to_owned)];
    for one in all {
        let removed = one.get("removed_by").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let removed = removed.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
        let [worker, rank, state, load, score] =
            ["worker", "rank", "state", "load", "score"].map(|n| plain(one, n));
        let score = if by_prompt { cost(one) } else { score };
        rows.push([worker, rank, state, load, score, cached(one), removed]);
    }
    // Where no prompt was looked for, nothing is said of caches.
    let shown = |column: usize| column != CACHED || by_prompt;
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let line = |row: &[String; 7]| {
        let cells = (0..).zip(row).filter(|(column, _)| shown(*column));
        let cells = cells.map(|(column, cell)| format!("{cell:<width$}", width = width(column)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Blocks of the prompt that a slot caches, of all.
fn cached(one: &Value) -> String {
    one.get("overlap")
        .map_or_else(|| "-".to_owned(), |held| format!("{}/{}", plain(held, "blocks"), plain(held, "of")))
}

/// In blocks.
fn cost(one: &Value) -> String {
    let cost = one.get("score").and_then(Value::as_u64);
    cost.map_or_else(|| "-".to_owned(), |cost| format!("{}.{:02}", cost / 10_000, cost % 10_000 / 100))
}

fn target(target: &Value) -> String {
    match target.get("rank") {
        Some(rank) => format!("{} rank {rank}", plain(target, "worker")),
        None => plain(target, "worker"),
    }
}

/// A field as text: `-` where there is none.
fn plain(value: &Value, name: &str) -> String {
    match value.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => "-".to_owned(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn an_explanation_is_a_table() {
        let answer = json!({
            "key": {"source": "header:x-session-id", "session": "00ff"}, "pool": "chat", "phase": "decode",
            "outcome": "held", "reason": "least_loaded", "choice": {"worker": "w1", "rank": 3},
            "candidates": [
                {"worker": "w1", "rank": 3, "state": "ready", "load": 0, "score": 0},
                {"worker": "worker-2", "state": "draining", "load": 12, "removed_by": ["state", "labels"]},
            ],
            "prefill": {"pool": "chat", "phase": "prefill", "outcome": "no_worker", "reason": "no_worker", "candidates": []},
        });
        expect![[r#"
            key      header:x-session-id (session 00ff)
            pool     chat (decode)
            outcome  held
            choice   w1 rank 3
            reason   least_loaded

            WORKER    RANK  STATE     LOAD  SCORE  LEFT OUT BY
            w1        3     ready     0     0
            worker-2  -     draining  12    -      state, labels

            pool     chat (prefill)
            outcome  no_worker
            choice   none
            reason   no_worker

            WORKER  RANK  STATE  LOAD  SCORE  LEFT OUT BY
            nobody prefills: the worker that answers does it itself"#]]
        .assert_eq(&table(&answer));
        assert_eq!(table(&json!({"passed": true})), "the filter lets it pass as it is");
        let answered = json!({"answered": {"status": 404, "body": {"error": 1}}});
        assert_eq!(table(&answered), r#"the filter answers 404 itself: {"error":1}"#);
    }

    #[test]
    fn under_kv_aware_the_table_has_what_each_slot_caches_and_costs() {
        let held = |blocks: u32| json!({"blocks": blocks, "of": 52});
        let answer = json!({"candidates": [
            {"worker": "w1", "rank": 3, "state": "ready", "load": 9, "score": 125_000, "overlap": held(41), "removed_by": ["load"]},
            {"worker": "w1", "rank": 4, "state": "ready", "load": 0, "score": 1_561_900, "overlap": held(0)},
            {"worker": "w2", "state": "down", "load": 0, "overlap": held(0), "removed_by": ["state"]},
        ]});
        expect![[r#"
            WORKER  RANK  STATE  LOAD  COST    CACHED  LEFT OUT BY
            w1      3     ready  9     12.50   41/52   load
            w1      4     ready  0     156.19  0/52
            w2      -     down   0     -       0/52    state"#]]
        .assert_eq(&candidates(&answer));
    }

    #[test]
    fn a_header_is_a_name_and_a_value() {
        assert_eq!(header("x-session-id: a:b ").unwrap(), ["x-session-id", "a:b"]);
        assert_eq!(header(" : v").unwrap_err().to_string(), "--header \" : v\" is not 'name: value'");
        assert!(header("x-session-id").unwrap_err().is_usage());
    }

    #[test]
    fn a_refusal_tells_every_fault() {
        let problem = json!({"title": "T", "detail": "1 fault", "errors": [{"path": "config.session", "problem": "p", "allowed": "a"}]});
        assert_eq!(refusal(&problem), "T: 1 fault\nconfig.session: p (allowed: a)");
    }
}
