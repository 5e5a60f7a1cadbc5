//! A ZeroMQ subscriber and replayer for the engine's events, and what they read.

use std::time::Duration;

use fake_engine::{EngineConfig, Kind, KvEvents, Version};
use rmpv::Value as Packed;
use serde_json::{Value, json};
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use crate::support::{Asked, start};

pub(crate) const RANK: &str = "x-data-parallel-rank";
const DEADLINE: Duration = Duration::from_secs(20);

/// An engine that publishes, blocks of 4.
pub(crate) async fn publishing(
    kind: Kind,
    version: Version,
    ranks: u32,
    change: impl FnOnce(&mut EngineConfig),
) -> Asked {
    start(ranks, |config| {
        (config.kind, config.version, config.block_size) = (kind, version, 4);
        config.kv_events = Some(KvEvents::loopback());
        change(config);
    })
    .await
}

/// A batch as it was received.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Batch {
    pub(crate) topic: Vec<u8>,
    pub(crate) seq: u64,
    pub(crate) payload: Vec<u8>,
}

impl Batch {
    pub(crate) fn decoded(&self) -> Packed {
        rmpv::decode::read_value(&mut &self.payload[..]).unwrap()
    }

    pub(crate) fn rank(&self) -> Option<u64> {
        self.decoded().as_array().unwrap().get(2).map(|rank| rank.as_u64().unwrap())
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.decoded()[1].as_array().unwrap().iter().cloned().map(Event).collect()
    }

    /// Each event's tag, in order.
    pub(crate) fn tags(&self) -> Vec<String> {
        self.events().iter().map(Event::tag).collect()
    }
}

/// One event, in either encoding.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event(pub(crate) Packed);

/// Places of fields in arrays.
const PLACES: [&str; 12] = [
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
];

impl Event {
    pub(crate) fn tag(&self) -> String {
        self.get("type").as_str().unwrap().to_owned()
    }

    /// A field by its name; nil when absent.
    pub(crate) fn get(&self, name: &str) -> Packed {
        let found = match &self.0 {
            Packed::Map(fields) => {
                fields.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
            }
            array => array.as_array().unwrap().get(PLACES.iter().position(|own| *own == name).unwrap()),
        };
        found.cloned().unwrap_or(Packed::Nil)
    }

    pub(crate) fn hashes(&self) -> Vec<Packed> {
        self.get("block_hashes").as_array().unwrap().clone()
    }

    pub(crate) fn tokens(&self) -> Vec<u32> {
        self.get("token_ids").as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
    }

    /// Its fields in order: names in maps, kinds of values in arrays; what may be either way is the same.
    pub(crate) fn shape(&self) -> Vec<String> {
        match &self.0 {
            Packed::Map(fields) => fields.iter().map(|(key, _)| key.as_str().unwrap().to_owned()).collect(),
            array => {
                let kind = |(place, value): (usize, &Packed)| match value {
                    _ if place == 2 && self.tag() == "BlockStored" => "parent".to_owned(),
                    Packed::Integer(_) => "integer".to_owned(),
                    Packed::Array(_) => "array".to_owned(),
                    other => other.to_string(),
                };
                array.as_array().unwrap().iter().enumerate().map(kind).collect()
            }
        }
    }
}

/// Who reads one rank's events.
pub(crate) struct Subscriber {
    socket: SubSocket,
}

impl Subscriber {
    /// Subscribes to the rank at this place and returns once it is heard: the next batch it reads is the engine's next.
    pub(crate) async fn of(engine: &Asked, index: usize) -> Self {
        let mut socket = SubSocket::new();
        let standing = engine.standing(index).await;
        socket.connect(&format!("tcp://127.0.0.1:{}", standing["port"])).await.unwrap();
        socket.subscribe("").await.unwrap();
        let mut subscriber = Self { socket };
        subscriber.until_heard(engine, index).await;
        subscriber
    }

    async fn until_heard(&mut self, engine: &Asked, index: usize) {
        let ticks = async {
            loop {
                engine.kv_fault("tick", Some(index)).await;
                if let Ok(batch) = timeout(Duration::from_millis(50), self.socket.recv()).await {
                    return read(batch.unwrap()).seq;
                }
            }
        };
        let mut heard = timeout(DEADLINE, ticks).await.expect("nothing heard");
        while heard + 1 < engine.standing(index).await["next_seq"].as_u64().unwrap() {
            heard = self.next().await.seq;
        }
    }

    pub(crate) async fn next(&mut self) -> Batch {
        read(timeout(DEADLINE, self.socket.recv()).await.expect("no batch in time").unwrap())
    }

    /// Up to what was published last.
    pub(crate) async fn all(&mut self, engine: &Asked, index: usize) -> Vec<Batch> {
        let next = engine.standing(index).await["next_seq"].as_u64().unwrap();
        let mut batches: Vec<Batch> = Vec::new();
        engine.kv_fault("tick", Some(index)).await;
        loop {
            let batch = self.next().await;
            if batch.seq >= next {
                return batches;
            }
            batches.push(batch);
        }
    }
}

fn read(message: ZmqMessage) -> Batch {
    let frames = message.into_vec();
    assert_eq!(frames.len(), 3);
    let seq = u64::from_be_bytes(frames[1][..].try_into().unwrap());
    Batch { topic: frames[0].to_vec(), seq, payload: frames[2].to_vec() }
}

/// Asks a rank's replay socket with these frames; every reply up to the end marker.
pub(crate) async fn replay(engine: &Asked, index: usize, start: u64) -> Vec<Vec<Vec<u8>>> {
    let mut socket = dealer(engine, index).await;
    socket.send(message(&[b"", &start.to_be_bytes()])).await.unwrap();
    let mut replies = Vec::new();
    loop {
        let reply = timeout(DEADLINE, socket.recv()).await.expect("no reply in time").unwrap();
        let frames: Vec<Vec<u8>> = reply.into_vec().iter().map(|frame| frame.to_vec()).collect();
        let is_end = frames.iter().any(|frame| frame[..] == [0xff; 8]);
        replies.push(frames);
        if is_end {
            return replies;
        }
    }
}

pub(crate) async fn dealer(engine: &Asked, index: usize) -> DealerSocket {
    let mut socket = DealerSocket::new();
    let standing = engine.standing(index).await;
    socket.connect(&format!("tcp://127.0.0.1:{}", standing["replay_port"])).await.unwrap();
    socket
}

pub(crate) fn message(frames: &[&[u8]]) -> ZmqMessage {
    let mut message = ZmqMessage::from(frames[0].to_vec());
    frames[1..].iter().for_each(|frame| message.push_back(frame.to_vec().into()));
    message
}

/// Sequence numbers of replies, without the end.
pub(crate) fn replayed(replies: &[Vec<Vec<u8>>]) -> Vec<u64> {
    let seq = |frames: &Vec<Vec<u8>>| u64::from_be_bytes(frames[frames.len() - 2][..].try_into().unwrap());
    replies[..replies.len() - 1].iter().map(seq).collect()
}

impl Asked {
    /// How one rank's publisher stands.
    pub(crate) async fn standing(&self, index: usize) -> Value {
        self.get("/control/kv-events").await.json()["ranks"][index].clone()
    }

    pub(crate) async fn kv_fault(&self, fault: &str, index: Option<usize>) {
        let rank = match index {
            Some(index) => self.standing(index).await["rank"].clone(),
            None => Value::Null,
        };
        let got = self.post("/control/kv-events", &[], &json!({ "fault": fault, "rank": rank })).await;
        assert_eq!(got.status, 200, "{}", got.text);
    }

    /// A prompt of these tokens and so long a reply; the cached tokens of it, and the reply's tokens.
    pub(crate) async fn tokens(&self, rank: &str, prompt: &[u32], reply: u32) -> (u64, Vec<u32>) {
        let body = json!({ "prompt": prompt, "max_tokens": reply, "return_token_ids": true });
        let got = self.post("/v1/completions", &[(RANK, rank)], &body).await;
        assert_eq!(got.status, 200, "{}", got.text);
        let made = serde_json::from_value(got.json()["choices"][0]["token_ids"].clone()).unwrap();
        (got.cached(), made)
    }
}

pub(crate) fn run(from: u32, count: u32) -> Vec<u32> {
    (from..from + count).collect()
}
