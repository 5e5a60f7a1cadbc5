//! The choice over loopback HTTP: the service as a child, one kept-alive connection, one request at a time.
//!
//! By hashes: `POST /v1/reservations` and its `DELETE`. By a body: `POST /v1/route`, as filters ask, and a `POST /v1/report` that ends
//! what it booked. The second call is counted in the CPU time, not in the latency.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::scratch::Scratch;
use e2e::{Service, ServicePlan};
use routing::block::{Chain, Namespace};
use serde_json::{Value, json};

use super::{BLOCKS, Found};
use crate::index::shape::{BLOCK_TOKENS, Draws};
use crate::process::cpu_us;

/// The fake engine's own small model.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/engine/model");
/// Prompts, each cached by one worker.
const PROMPTS: usize = 64;
/// Blocks of one pushed event.
const PUSHED_BLOCKS: usize = 157;
/// The tokenizer loads its files within that.
const LOADED_WITHIN: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(10);
const WORDS: [&str; 10] =
    ["the", "flight", "leaves", "at", "ten", "from", "gate", "four;", "please", "confirm"];

/// Measures a service of so many workers.
///
/// # Errors
/// It does not start, or does not answer as it must.
pub(super) async fn measure(workers: u32, requests: u32, body_bytes: usize, found: &mut Found) -> Result<()> {
    let scratch = Scratch::new()?;
    let tokens = json!({"mode": "local", "path": MODEL});
    let pool = json!({"affinity": "off", "tokens": tokens});
    let plan = ServicePlan { policy: Some("kv_aware"), pool, probe_interval_ms: 0, ..ServicePlan::default() };
    let service = Service::start(scratch.path(), &plan).await?;
    for worker in 0..workers {
        let body = json!({"endpoints": [{"address": "127.0.0.1:9"}], "models": ["tiny"], "kv_events": "off"});
        let mut body = body;
        body["endpoints"][0]["address"] = json!(format!("127.0.{}.{}:9", worker / 250, worker % 250 + 1));
        let said = service.call("PUT", &format!("/v1/workers/w{worker:03}"), Some(&body.to_string())).await?;
        ensure!(said.status < 300, "a worker is refused: {said:?}");
    }
    let prompts = push(&service, workers).await?;
    let mut wire = Wire::connect(service.data())?;
    blocks(&service, &mut wire, &prompts, requests, found)?;
    chat(&service, &mut wire, requests, body_bytes, found)
}

/// Lets workers cache prompts.
async fn push(service: &Service, workers: u32) -> Result<Vec<Chain>> {
    let mut draws = Draws::new(5);
    let mut seqs = vec![0u64; workers as usize];
    let mut prompts = Vec::new();
    for prompt in 0..PROMPTS {
        let tokens: Vec<u32> =
            (0..BLOCKS * BLOCK_TOKENS as usize).map(|_| draws.below(150_000) as u32).collect();
        let worker = prompt % workers as usize;
        let mut parent = Value::Null;
        for part in tokens.chunks(PUSHED_BLOCKS * BLOCK_TOKENS as usize) {
            let hashes: Vec<u64> =
                part.chunks(BLOCK_TOKENS as usize).map(|_| draws.below(u64::MAX)).collect();
            let event = json!({"type": "stored", "hashes": hashes, "parent": parent, "tokens": part, "block_size": BLOCK_TOKENS});
            let body =
                json!({"worker": format!("w{worker:03}"), "rank": 0, "seq": seqs[worker], "events": [event]});
            let said = service.call("POST", "/v1/kv-events", Some(&body.to_string())).await?;
            ensure!(said.status < 300, "events are refused: {said:?}");
            seqs[worker] += 1;
            parent = json!(hashes.last());
        }
        prompts.push(Chain::of(Namespace::default(), BLOCK_TOKENS, &tokens));
    }
    Ok(prompts)
}

fn blocks(
    service: &Service,
    wire: &mut Wire,
    prompts: &[Chain],
    requests: u32,
    found: &mut Found,
) -> Result<()> {
    let prompt = |request: u32| {
        let chain = &prompts[request as usize % prompts.len()];
        let hashes: Vec<u64> = chain.hashes.iter().map(|hash| hash.0).collect();
        json!({"blocks": {"hashes": hashes, "block_size": BLOCK_TOKENS, "tokens": chain.tokens}})
    };
    let reserve = |request: u32| Exchange {
        path: "/v1/reservations".to_owned(),
        body: json!({"id": format!("r{request}"), "pool": "default", "prompt": prompt(request)}).to_string(),
        over: ("DELETE", format!("/v1/reservations/r{request}"), String::new()),
    };
    let answer = wire.exchange(&reserve(u32::MAX))?;
    ensure!(answer["overlap"]["blocks"] == BLOCKS - 1, "all but the last block are usable: {answer}");
    let taken = timed(service, wire, &(0..requests).map(reserve).collect::<Vec<_>>())?;
    taken.tell("select_http", found);
    Ok(())
}

/// A conversation whose last message alone is new.
fn chat(
    service: &Service,
    wire: &mut Wire,
    requests: u32,
    body_bytes: usize,
    found: &mut Found,
) -> Result<()> {
    let known = conversation(body_bytes);
    let prompt = |request: u32| {
        let mut messages = known.clone();
        messages.push(json!({"role": "user", "content": words(request as usize, 30)}));
        let body = json!({"model": "tiny", "messages": messages}).to_string();
        json!({"text": {"path": "/v1/chat/completions", "body": body, "whole": true}})
    };
    let until = Instant::now() + LOADED_WITHIN;
    let route = |request: u32| {
        let caller = json!({"node": "bench", "vm": 1});
        let entries = json!([{"kind": "ended", "request": request}]);
        let over = json!({"caller": caller, "seq": request + 1, "in_flight": [], "entries": entries});
        Exchange {
            path: "/v1/route".to_owned(),
            body: json!({"caller": caller, "request": request, "pool": "default", "deadline_ms": 250, "prompt": prompt(request)})
                .to_string(),
            over: ("POST", "/v1/report".to_owned(), over.to_string()),
        }
    };
    while wire.exchange(&route(0))?["overlap"]["of"].as_u64().unwrap_or(0) == 0 {
        ensure!(Instant::now() < until, "the tokenizer makes no blocks of a chat body:\n{}", service.log());
    }
    let taken = timed(service, wire, &(1..=requests).map(route).collect::<Vec<_>>())?;
    taken.tell("route_chat", found);
    Ok(())
}

fn conversation(bytes: usize) -> Vec<Value> {
    let mut messages = vec![json!({"role": "system", "content": words(0, 300)})];
    let size = |messages: &[Value]| json!(messages).to_string().len();
    while size(&messages) < bytes {
        let role = if messages.len() % 2 == 1 { "user" } else { "assistant" };
        messages.push(json!({"role": role, "content": words(messages.len() * 31, 120)}));
    }
    // A user's message follows.
    if messages.len() % 2 == 0 {
        messages.pop();
    }
    messages
}

fn words(seed: usize, count: usize) -> String {
    (0..count).map(|n| WORDS[(seed + n * n + n / 7) % WORDS.len()]).collect::<Vec<_>>().join(" ")
}

/// What requests took.
struct Taken {
    /// Latencies of the first call, ascending.
    route_us: Vec<f64>,
    /// CPU of the service for a request and its end.
    cpu_us: f64,
}

impl Taken {
    fn tell(&self, what: &str, found: &mut Found) {
        let within =
            |share: usize| self.route_us[(self.route_us.len() * share / 100).min(self.route_us.len() - 1)];
        found.push((format!("{what}_p50_us"), within(50)));
        found.push((format!("{what}_p99_us"), within(99)));
        found.push((format!("{what}_cpu_us"), self.cpu_us));
    }
}

/// A question, and what ends what it booked.
struct Exchange {
    path: String,
    body: String,
    over: (&'static str, String, String),
}

fn timed(service: &Service, wire: &mut Wire, exchanges: &[Exchange]) -> Result<Taken> {
    let mut route_us = Vec::with_capacity(exchanges.len());
    let began = cpu_us(service.pid())?;
    for exchange in exchanges {
        let asked = Instant::now();
        let (status, answer) = wire.call("POST", &exchange.path, &exchange.body)?;
        route_us.push(asked.elapsed().as_secs_f64() * 1e6);
        ensure!(status == 200, "{}: {status} {answer}", exchange.path);
        wire.end(exchange)?;
    }
    let cpu_us = (cpu_us(service.pid())? - began) / exchanges.len() as f64;
    route_us.sort_by(f64::total_cmp);
    Ok(Taken { route_us, cpu_us })
}

/// A connection that stays.
struct Wire {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Wire {
    fn connect(to: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self { reader: BufReader::new(stream.try_clone()?), stream })
    }

    /// Asks, ends what was booked, and returns the answer.
    fn exchange(&mut self, exchange: &Exchange) -> Result<Value> {
        let (status, answer) = self.call("POST", &exchange.path, &exchange.body)?;
        ensure!(status == 200, "{}: {status} {answer}", exchange.path);
        self.end(exchange)?;
        serde_json::from_str(&answer).context("an answer that is no JSON")
    }

    fn end(&mut self, exchange: &Exchange) -> Result<()> {
        let (method, path, body) = &exchange.over;
        let (status, answer) = self.call(method, path, body)?;
        ensure!(status == 204, "{path}: {status} {answer}");
        Ok(())
    }

    /// Status and body.
    fn call(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            ensure!(self.reader.read_line(&mut line)? > 0, "the service closed the connection");
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest.get(..3).unwrap_or_default().parse()?;
            } else if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body)?;
        Ok((status, String::from_utf8(body)?))
    }
}
