//! Builders shared by the tests of this crate: a small fleet, requests as header lists. Knows no test.
#![allow(dead_code, reason = "each test program uses its own part of it")]

use routing::contract::{EndpointInfo, PoolInfo, RankNumbering, Target, Topology, WorkerInfo};
use routing::id::{PoolName, Rank, WorkerId};
use routing::session::RequestView;

pub(crate) fn id(text: &str) -> WorkerId {
    WorkerId::parse(text).unwrap()
}

pub(crate) fn pool_name(text: &str) -> PoolName {
    PoolName::parse(text).unwrap()
}

pub(crate) fn target(worker: &str, rank: Option<u32>) -> Target {
    Target { worker: id(worker), rank: rank.map(Rank) }
}

pub(crate) fn endpoint(address: &str, dp_start: u32, dp_size: u32) -> EndpointInfo {
    EndpointInfo { address: address.to_owned(), rank_numbering: RankNumbering::Global, dp_start, dp_size }
}

pub(crate) fn worker(name: &str, endpoints: &[EndpointInfo]) -> WorkerInfo {
    WorkerInfo::with_defaults(id(name), pool_name("chat"), endpoints.to_vec())
}

pub(crate) fn pool(name: &str) -> PoolInfo {
    PoolInfo::with_defaults(pool_name(name))
}

/// One pool `chat`: `w0` with ranks 0–3, `w1` with ranks 4–7, `w2` with a single rank.
pub(crate) fn small_fleet() -> Topology {
    Topology {
        version: 1,
        pools: vec![pool("chat")],
        workers: vec![
            worker("w0", &[endpoint("10.0.0.1:80", 0, 4)]),
            worker("w1", &[endpoint("10.0.0.2:80", 4, 4)]),
            worker("w2", &[endpoint("10.0.0.3:80", 0, 1)]),
        ],
    }
}

/// Headers in the order sent; names as Envoy gives them, lower-case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Headers(pub(crate) Vec<(String, Vec<u8>)>);

impl Headers {
    pub(crate) fn of(pairs: &[(&str, &str)]) -> Self {
        pairs.iter().fold(Self::default(), |headers, (name, value)| headers.with(name, value.as_bytes()))
    }

    pub(crate) fn with(mut self, name: &str, value: &[u8]) -> Self {
        self.0.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.header(name).map(|value| String::from_utf8_lossy(&value).into_owned())
    }

    pub(crate) fn set(&mut self, name: &str, value: Option<&str>) {
        self.0.retain(|(n, _)| n != name);
        if let Some(value) = value {
            self.0.push((name.to_owned(), value.as_bytes().to_owned()));
        }
    }
}

impl RequestView for Headers {
    fn header(&self, name: &str) -> Option<Vec<u8>> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
    }
}

/// Method and path of a request that says nothing else: one on which engines read a rank.
pub(crate) fn chat(name: &str) -> Option<Vec<u8>> {
    let text = match name {
        ":method" => "POST",
        ":path" => "/v1/chat/completions",
        _ => return None,
    };
    Some(text.as_bytes().to_owned())
}
