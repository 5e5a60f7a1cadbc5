//! Where a worker's ranks publish what they cache: said by hand, asked of the engine, or not at all. Opens no socket.

use super::address::{Address, Host};
use super::fields::{Faults, Fields};
use super::table;
use serde_json::{Value, json};
use std::fmt;

/// Longest topic, in bytes.
pub const TOPIC_BYTES_MAX: usize = 256;
/// What an event address looks like.
const TCP_ALLOWED: &str = "tcp://host:port, or tcp://*:port for the host of the rank's endpoint";
/// What the field looks like.
pub(super) const FORMS: &str = "\"auto\", \"discover\", \"off\", or {\"endpoint\": \"tcp://*:5557\", \"replay_endpoint\": \
     \"tcp://*:5657\", \"topic\": \"\"}, the last two optional";

/// How a worker's events are found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KvEvents {
    /// Asked of the engine where its pool places by them, else off.
    #[default]
    Auto,
    /// Asked of the engine.
    Discover,
    /// Not subscribed to.
    Off,
    /// As said.
    At(KvAt),
}

/// Event sockets said by hand. Rank r has the ports plus r, as engines count them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KvAt {
    /// Of rank 0.
    pub endpoint: EventAddress,
    /// The replay socket of rank 0, if the engine has one.
    pub replay_endpoint: Option<EventAddress>,
    /// Prefix of the topics wanted.
    pub topic: String,
}

/// `tcp://host:port`, where `*` is the host of the endpoint a rank is behind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventAddress {
    /// `None`: `*`.
    pub host: Option<Host>,
    /// Of rank 0.
    pub port: u16,
}

impl EventAddress {
    /// Reads `tcp://10.0.0.1:5557` or `tcp://*:5557`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("tcp://").ok_or_else(|| "does not begin with tcp://".to_owned())?;
        if let Some(port) = rest.strip_prefix("*:") {
            let port = port.parse().ok().filter(|port| *port != 0);
            let port = port.ok_or_else(|| "has a port that is no number in 1..=65535".to_owned())?;
            return Ok(Self { host: None, port });
        }
        let Address { host, port } = Address::parse(rest).map_err(|e| e.to_string())?;
        Ok(Self { host: Some(host), port })
    }

    /// Where rank `rank`'s socket is, seen from here; `own` is the host of the endpoint it is behind. `None`: there is no such port.
    #[must_use]
    pub fn of_rank(&self, rank: u32, own: &Host) -> Option<String> {
        let port = u16::try_from(u32::from(self.port).checked_add(rank)?).ok()?;
        let host = self.host.clone().unwrap_or_else(|| own.clone());
        Some(format!("tcp://{}", Address { host, port }))
    }
}

impl fmt::Display for EventAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            None => write!(f, "tcp://*:{}", self.port),
            Some(host) => write!(f, "tcp://{}", Address { host: host.clone(), port: self.port }),
        }
    }
}

/// Reads the field; `rank_end` is the number after the worker's last rank.
pub(super) fn parse(fields: &mut Fields<'_>, rank_end: u32, faults: &mut Faults) -> KvEvents {
    let at = fields.at(table::KV_EVENTS.name());
    match fields.take(table::KV_EVENTS.name()) {
        None => KvEvents::Auto,
        Some(Value::String(word)) if word == "auto" => KvEvents::Auto,
        Some(Value::String(word)) if word == "discover" => KvEvents::Discover,
        Some(Value::String(word)) if word == "off" => KvEvents::Off,
        Some(Value::Object(_)) if rank_end > 0 => {
            declared(fields, &at, rank_end, faults).map_or(KvEvents::Auto, KvEvents::At)
        }
        // Ranks that could not be read are told already.
        Some(Value::Object(_)) => KvEvents::Auto,
        Some(_) => {
            faults.add(&at, "is neither a known word nor an object".to_owned(), FORMS);
            KvEvents::Auto
        }
    }
}

fn declared(fields: &mut Fields<'_>, at: &str, rank_end: u32, faults: &mut Faults) -> Option<KvAt> {
    let mut inner = Fields::open(at, fields.take(table::KV_EVENTS.name())?, faults)?;
    let endpoint = inner.required(faults, "endpoint", TCP_ALLOWED, EventAddress::parse);
    let replay_endpoint = inner.parsed(faults, "replay_endpoint", TCP_ALLOWED, EventAddress::parse);
    let topic = inner.text(faults, "topic").unwrap_or("").to_owned();
    if topic.len() > TOPIC_BYTES_MAX {
        faults.add(&inner.at("topic"), format!("is {} bytes long", topic.len()), "0..=256 bytes");
    }
    for (name, address) in [("endpoint", endpoint.as_ref()), ("replay_endpoint", replay_endpoint.as_ref())] {
        if let Some(address) = address.filter(|a| u32::from(a.port) + rank_end > u32::from(u16::MAX) + 1) {
            let problem = format!("port {} has no room for rank {}", address.port, rank_end - 1);
            faults.add(&inner.at(name), problem, "a port that plus the last rank is at most 65535");
        }
    }
    inner.close(faults);
    Some(KvAt { endpoint: endpoint?, replay_endpoint, topic })
}

/// As it is written.
pub(super) fn to_json(kv_events: &KvEvents) -> Value {
    match kv_events {
        KvEvents::Auto => json!("auto"),
        KvEvents::Discover => json!("discover"),
        KvEvents::Off => json!("off"),
        KvEvents::At(at) => json!({
            "endpoint": at.endpoint.to_string(),
            "replay_endpoint": at.replay_endpoint.as_ref().map(ToString::to_string),
            "topic": at.topic,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declare::{WorkerSpec, parse};

    fn read(kv_events: &Value) -> Result<WorkerSpec, String> {
        let body = json!({
            "endpoints": [
                { "address": "10.0.0.1:8000", "dp_size": 4 }, { "address": "[fd00::2]:8000", "dp_start": 4, "dp_size": 4 },
            ],
            "kv_events": kv_events,
        });
        parse(body.to_string().as_bytes(), Some("w1")).map_err(|faults| faults.to_string())
    }

    #[test]
    fn every_form_is_read_and_written_back() {
        for form in [
            json!("auto"),
            json!("discover"),
            json!("off"),
            json!({"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://10.0.0.9:5657", "topic": "kv@"}),
            json!({"endpoint": "tcp://[fd00::1]:5557", "replay_endpoint": null, "topic": ""}),
        ] {
            let spec = read(&form).unwrap();
            assert_eq!(spec.to_json()["kv_events"], form);
        }
        assert_eq!(read(&Value::Null).unwrap().kv_events, KvEvents::Auto);
    }

    #[test]
    fn a_rank_has_the_port_plus_its_number_on_its_own_host() {
        let any = EventAddress::parse("tcp://*:5557").unwrap();
        let own = Address::parse("[fd00::2]:8000").unwrap().host;
        assert_eq!(any.of_rank(5, &own).as_deref(), Some("tcp://[fd00::2]:5562"));
        let named = EventAddress::parse("tcp://node-1:65530").unwrap();
        assert_eq!(named.of_rank(5, &own).as_deref(), Some("tcp://node-1:65535"));
        assert_eq!(named.of_rank(6, &own), None);
    }

    #[test]
    fn faults_are_told_with_their_paths() {
        let faults = |form: &Value| read(form).expect_err("accepted");
        assert!(faults(&json!("yes")).starts_with("kv_events: is neither"), "{}", faults(&json!("yes")));
        let told =
            faults(&json!({"endpoint": "5557", "replay_endpoint": "tcp://*:0", "topic": 1, "port": 2}));
        for path in [
            "kv_events.endpoint: ",
            "kv_events.replay_endpoint: ",
            "kv_events.topic: ",
            "kv_events.port: unknown",
        ] {
            assert!(told.contains(path), "{path} is missing in\n{told}");
        }
        assert!(faults(&json!({"endpoint": "tcp://*:65529"})).contains("no room for rank 7"));
        assert!(read(&json!({"endpoint": "tcp://*:65528"})).is_ok());
    }
}
