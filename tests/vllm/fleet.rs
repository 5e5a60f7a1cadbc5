//! The service beside the engine: its pools, the one worker, and `route` as a filter would ask it.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use e2e::service::{Service, ServicePlan};
use routing::contract::{Caller, Entry, Prompt, REPORT_PATH, ROUTE_PATH, Report, RouteReply, RouteRequest};
use routing::id::{Epoch, PoolName, RequestId};
use routing::time::Millis;
use serde_json::{Value, json};

/// The worker's id.
pub(crate) const WORKER: &str = "w0";
/// The path that is played.
pub(crate) const CHAT: &str = "/v1/chat/completions";
/// Long: what is measured is not how fast it answers.
const DEADLINE: Millis = Millis(5000);

/// See the module.
#[derive(Debug)]
pub(crate) struct Fleet {
    service: Service,
    http: reqwest::Client,
    pub(crate) pool: String,
    asked: u64,
}

/// Events of one rank, as the service shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) link: String,
    pub(crate) events: u64,
    pub(crate) last_seq: Option<u64>,
    pub(crate) cold: bool,
    pub(crate) blocks: u64,
}

impl Fleet {
    /// Two pools that place by events: one whose tokens the engine makes, one that makes them itself.
    pub(crate) async fn start(folder: &Path, model: &Path) -> Result<Self> {
        let plan = ServicePlan {
            policy: Some("kv_aware"),
            pool: json!({ "tokens": { "mode": "engine" } }),
            others: vec![
                json!({ "name": "local", "policy": "kv_aware", "tokens": { "mode": "local", "path": model } }),
            ],
            ..ServicePlan::default()
        };
        let service = Service::start(folder, &plan).await?;
        Ok(Self {
            service,
            http: reqwest::Client::builder().no_proxy().build()?,
            pool: "default".to_owned(),
            asked: 0,
        })
    }

    pub(crate) fn control(&self) -> SocketAddr {
        self.service.control()
    }

    pub(crate) fn data(&self) -> SocketAddr {
        self.service.data()
    }

    /// Declares the worker, by its URL and nothing else.
    pub(crate) async fn declare(&self, url: &str) -> Result<()> {
        let body = json!({ "url": url }).to_string();
        let said = self.service.call("PUT", &format!("/v1/workers/{WORKER}"), Some(&body)).await?;
        ensure!(said.status == 201, "the worker is refused: {said:?}");
        Ok(())
    }

    /// Moves the worker.
    pub(crate) async fn move_to(&mut self, pool: &str) -> Result<()> {
        let body = json!({ "pool": pool }).to_string();
        let said = self.service.call("PATCH", &format!("/v1/workers/{WORKER}"), Some(&body)).await?;
        ensure!(said.status == 200, "the worker does not move: {said:?}");
        self.pool = pool.to_owned();
        Ok(())
    }

    /// `GET /v1/workers/ID`.
    pub(crate) async fn worker(&self) -> Result<Value> {
        Ok(self.service.call("GET", &format!("/v1/workers/{WORKER}"), None).await?.body)
    }

    /// Events of each rank; of one that is not listened to, none.
    pub(crate) async fn shown(&self) -> Result<Vec<Option<Shown>>> {
        let worker = self.worker().await?;
        let slots = worker["slots"].as_array().context("no slots")?;
        Ok(slots
            .iter()
            .filter(|slot| !slot["rank"].is_null())
            .map(|slot| shown(&slot["kv_events"]))
            .collect())
    }

    /// A metric of the service.
    pub(crate) async fn metric(&self, name: &str, label: &str) -> Result<f64> {
        self.service.metric(name, &[label]).await
    }

    /// Where the filter would send a body, and the request to end afterwards.
    pub(crate) async fn route(&mut self, body: &str) -> Result<(RequestId, RouteReply)> {
        self.asked += 1;
        let request = RequestId(self.asked);
        let pool = PoolName::parse(&self.pool)?;
        let mut question = RouteRequest::new(caller(), request, pool, DEADLINE);
        let prompt = Prompt::Text { path: CHAT.to_owned(), body: body.to_owned(), whole: true };
        question.prompt = Some(Box::new(prompt));
        let url = format!("http://{}{ROUTE_PATH}", self.service.data());
        let answer = self.http.post(url).json(&question).send().await?;
        Ok((request, answer.error_for_status()?.json().await?))
    }

    /// Tells that a request is over.
    pub(crate) async fn ended(&mut self, request: RequestId) -> Result<()> {
        self.asked += 1;
        let report = Report {
            caller: caller(),
            seq: self.asked,
            in_flight: Vec::new(),
            entries: vec![Entry::Ended { request }],
            upstream_role_missing: 0,
        };
        let url = format!("http://{}{REPORT_PATH}", self.service.data());
        self.http.post(url).json(&report).send().await?.error_for_status()?;
        Ok(())
    }
}

fn caller() -> Caller {
    Caller { node: "vllm-check".to_owned(), vm: Epoch(1) }
}

fn shown(events: &Value) -> Option<Shown> {
    Some(Shown {
        link: events["link"].as_str()?.to_owned(),
        events: events["events"].as_u64()?,
        last_seq: events["last_seq"].as_u64(),
        cold: events["cold"].as_bool()?,
        blocks: events["blocks"]["gpu"].as_u64()?,
    })
}
