//! Where an engine says that its ranks publish: vLLM's `GET /kv_event_sources` (from 0.31) and SGLang's `/server_info` (from 0.5.13,
//! `/get_server_info` before that name). Pure: bodies in, addresses out. Ports in vLLM's answer are each rank's own, in SGLang's those
//! of rank 0.

use crate::declare::kv_events::{EventAddress, TOPIC_BYTES_MAX};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Most of an answer that is read. SGLang's has all arguments and the state of every rank.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Most ranks taken from one answer.
const RANKS_MAX: usize = 1024;

/// What one rank publishes where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its event socket.
    pub endpoint: EventAddress,
    /// Its replay socket, if it has one.
    pub replay_endpoint: Option<EventAddress>,
    /// What it publishes under.
    pub topic: String,
}

/// What an engine told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Ranks by their global number; those that publish nothing are `None`.
    Ranks(BTreeMap<u32, Option<Found>>),
    /// It publishes nothing.
    Nothing,
    /// The answer says nothing of events: an older engine, or another program.
    NotSaid,
}

/// Paths to ask, best first, and how each answer is read.
pub const VLLM: (&str, fn(&[u8]) -> Told) = ("/kv_event_sources", vllm);
/// See [`VLLM`].
pub const SGLANG: (&str, fn(&[u8]) -> Told) = ("/server_info", sglang);
/// See [`VLLM`].
pub const SGLANG_OLD: (&str, fn(&[u8]) -> Told) = ("/get_server_info", sglang);

#[derive(Deserialize)]
struct VllmSource {
    #[serde(default)]
    enable_kv_cache_events: bool,
    #[serde(default)]
    publisher: Option<String>,
    #[serde(default)]
    endpoint: Option<String>,
    #[serde(default)]
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: Option<String>,
}

/// vLLM's answer: a source by rank; `{}` when it was started without events.
#[must_use]
pub fn vllm(body: &[u8]) -> Told {
    let Ok(sources) = serde_json::from_slice::<BTreeMap<String, VllmSource>>(body) else {
        return Told::NotSaid;
    };
    let ranks = sources
        .iter()
        .take(RANKS_MAX)
        .filter_map(|(rank, source)| Some((rank.parse().ok()?, source.found())));
    let ranks: BTreeMap<u32, Option<Found>> = ranks.collect();
    match ranks.values().any(Option::is_some) {
        true => Told::Ranks(ranks),
        false if ranks.is_empty() && !sources.is_empty() => Told::NotSaid,
        false => Told::Nothing,
    }
}

impl VllmSource {
    fn found(&self) -> Option<Found> {
        let publishes =
            self.enable_kv_cache_events && self.publisher.as_deref().is_none_or(|word| word == "zmq");
        Some(Found {
            endpoint: address(self.endpoint.as_deref().filter(|_| publishes)?)?,
            replay_endpoint: self.replay_endpoint.as_deref().and_then(address),
            topic: topic(self.topic.as_deref())?,
        })
    }
}

/// A wildcard of any family is the engine's own host.
fn address(text: &str) -> Option<EventAddress> {
    let any = ["tcp://0.0.0.0:", "tcp://[::]:"].iter().find_map(|any| text.strip_prefix(any));
    any.map_or_else(|| EventAddress::parse(text), |port| EventAddress::parse(&format!("tcp://*:{port}"))).ok()
}

fn topic(text: Option<&str>) -> Option<String> {
    Some(text.unwrap_or("")).filter(|text| text.len() <= TOPIC_BYTES_MAX).map(str::to_owned)
}

#[derive(Deserialize)]
struct SglangInfo {
    #[serde(default)]
    kv_events: Option<SglangEvents>,
    #[serde(default)]
    dp_size: Option<u32>,
}

#[derive(Deserialize)]
struct SglangEvents {
    #[serde(default)]
    publisher: Option<String>,
    #[serde(default)]
    endpoint_host: Option<String>,
    #[serde(default)]
    endpoint_port_base: Option<u16>,
    #[serde(default)]
    replay_endpoint_port_base: Option<u16>,
    #[serde(default)]
    topic: Option<String>,
    #[serde(default)]
    dp_size: Option<u32>,
}

/// SGLang's answer: ports of rank 0 under `kv_events`.
#[must_use]
pub fn sglang(body: &[u8]) -> Told {
    let Ok(info) = serde_json::from_slice::<SglangInfo>(body) else { return Told::NotSaid };
    let Some(events) = info.kv_events else { return Told::NotSaid };
    if events.publisher.as_deref() != Some("zmq") {
        return Told::Nothing;
    }
    let count = events.dp_size.or(info.dp_size).unwrap_or(1).clamp(1, 1024);
    let ranks = (0..count).map(|rank| (rank, events.found(rank)));
    Told::Ranks(ranks.collect())
}

impl SglangEvents {
    fn found(&self, rank: u32) -> Option<Found> {
        let host = self.endpoint_host.as_deref().unwrap_or("*");
        let at = |base: u16| {
            let port = u16::try_from(u32::from(base).checked_add(rank)?).ok()?;
            address(&format!("tcp://{host}:{port}"))
        };
        Some(Found {
            endpoint: at(self.endpoint_port_base?)?,
            replay_endpoint: self.replay_endpoint_port_base.and_then(at),
            topic: topic(self.topic.as_deref())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(told: &Told) -> Vec<String> {
        let Told::Ranks(ranks) = told else { panic!("{told:?}") };
        let line = |(rank, found): (&u32, &Option<Found>)| match found {
            None => format!("{rank}: nothing"),
            Some(found) => {
                let replay =
                    found.replay_endpoint.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
                format!("{rank}: {} {replay} {:?}", found.endpoint, found.topic)
            }
        };
        ranks.iter().map(line).collect()
    }

    #[test]
    fn vllm_tells_each_rank_with_its_own_ports() {
        let body = br#"{"2":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5559","replay_endpoint":"tcp://*:5659",
            "buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv-events"},
            "3":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://10.0.0.7:40123","replay_endpoint":null,"topic":""}}"#;
        assert_eq!(
            shown(&vllm(body)),
            [r#"2: tcp://*:5559 tcp://*:5659 "kv-events""#, r#"3: tcp://10.0.0.7:40123 - """#]
        );
    }

    #[test]
    fn vllm_without_events_says_so() {
        let off = br#"{"0":{"enable_kv_cache_events":false,"publisher":"null","endpoint":"tcp://*:5557","topic":""}}"#;
        assert_eq!(vllm(off), Told::Nothing);
        // As a vLLM 0.32.0 answers that was started without --kv-events-config.
        assert_eq!(vllm(b"{}"), Told::Nothing);
        for other in [&b"[]"[..], b"{\"detail\":\"Not Found\"}", b"<html>", b""] {
            assert_eq!(vllm(other), Told::NotSaid);
        }
    }

    #[test]
    fn sglang_tells_the_ports_of_rank_0() {
        let body = br#"{"dp_size":2,"page_size":64,"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,
            "topic":"","block_size":64,"dp_size":2,"replay_endpoint_port_base":5657},"internal_states":[{},{}]}"#;
        assert_eq!(
            shown(&sglang(body)),
            [r#"0: tcp://*:5557 tcp://*:5657 """#, r#"1: tcp://*:5558 tcp://*:5658 """#]
        );
        let wild =
            br#"{"kv_events":{"publisher":"zmq","endpoint_host":"0.0.0.0","endpoint_port_base":6000}}"#;
        assert_eq!(shown(&sglang(wild)), [r#"0: tcp://*:6000 - """#]);
        assert_eq!(sglang(br#"{"kv_events":{"publisher":"null"}}"#), Told::Nothing);
        assert_eq!(sglang(br#"{"dp_size":2}"#), Told::NotSaid);
    }

    #[test]
    fn ports_that_cannot_be_and_endless_numbers_of_ranks_are_not_taken() {
        let body = br#"{"kv_events":{"publisher":"zmq","endpoint_port_base":65535,"dp_size":4000000000}}"#;
        let Told::Ranks(ranks) = sglang(body) else { panic!() };
        assert_eq!(ranks.len(), 1024);
        assert_eq!(ranks.values().flatten().count(), 1);
    }
}
