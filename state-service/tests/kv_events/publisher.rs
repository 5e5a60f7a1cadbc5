//! A publisher as engines are one: a PUB socket, a ring, and a ROUTER that replays it. Encodes with `rmpv`, numbers from 0.

use bytes::Bytes;
use rmpv::Value;
use std::sync::{Arc, Mutex};
use tokio::task::JoinHandle;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

type Ring = Arc<Mutex<Vec<(u64, Bytes)>>>;

/// How replays are framed: with the topic (vLLM ≥ 0.26) or without.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Topic,
    Old,
}

pub(crate) struct Publisher {
    socket: PubSocket,
    replay: JoinHandle<()>,
    ring: Ring,
    seq: u64,
    life: f64,
    pub(crate) port: u16,
    pub(crate) replay_port: u16,
}

pub(crate) const TOPIC: &str = "kv@10.0.0.7:8000@tiny";

impl Publisher {
    /// One life; `ports` of the life before, or 0 for free ones.
    pub(crate) async fn start(life: u32, ports: (u16, u16), framing: Framing) -> Self {
        let ring = Ring::default();
        let mut socket = PubSocket::new();
        let port = bind(&mut socket, ports.0).await;
        let mut router = RouterSocket::new();
        let replay_port = bind(&mut router, ports.1).await;
        let replay = tokio::spawn(serve(router, Arc::clone(&ring), framing));
        Self { socket, replay, ring, seq: 0, life: f64::from(life), port, replay_port }
    }

    /// Publishes a store of one block named `block`.
    pub(crate) async fn store(&mut self, block: u64) {
        self.lose(block);
        self.send_last().await;
    }

    /// Sends what the ring got last.
    pub(crate) async fn send_last(&mut self) {
        let (seq, payload) = self.ring.lock().unwrap().last().unwrap().clone();
        self.send(TOPIC, seq, payload).await;
    }

    /// As [`Self::store`], but only the ring gets it.
    pub(crate) fn lose(&mut self, block: u64) -> u64 {
        self.lose_blocks(block..block + 1)
    }

    /// The same with a chain of blocks.
    pub(crate) fn lose_blocks(&mut self, blocks: std::ops::Range<u64>) -> u64 {
        let tokens = blocks.clone().flat_map(|block| [block.into(), 2.into()]).collect();
        let hashes = Value::Array(blocks.map(Value::from).collect());
        let event = Value::Map(vec![
            ("type".into(), "BlockStored".into()),
            ("block_hashes".into(), hashes),
            ("parent_block_hash".into(), Value::Nil),
            ("token_ids".into(), Value::Array(tokens)),
            ("block_size".into(), 2.into()),
        ]);
        let time = Value::F64(self.life * 1e6 + self.seq as f64);
        let mut payload = Vec::new();
        let batch = Value::Array(vec![time, Value::Array(vec![event]), 0.into()]);
        rmpv::encode::write_value(&mut payload, &batch).unwrap();
        let seq = self.seq;
        self.seq += 1;
        self.ring.lock().unwrap().push((seq, payload.into()));
        seq
    }

    pub(crate) async fn send(&mut self, topic: &str, seq: u64, payload: Bytes) {
        let mut message = ZmqMessage::from(topic);
        message.push_back(Bytes::copy_from_slice(&seq.to_be_bytes()));
        message.push_back(payload);
        self.socket.send(message).await.unwrap();
    }

    /// The process dies; its ports are free again when this returns.
    pub(crate) async fn die(mut self) -> (u16, u16) {
        self.replay.abort();
        let _ = (&mut self.replay).await;
        self.socket.unbind_all().await;
        (self.port, self.replay_port)
    }
}

async fn bind(socket: &mut impl Socket, port: u16) -> u16 {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        match socket.bind(&format!("tcp://127.0.0.1:{port}")).await {
            Ok(zeromq::Endpoint::Tcp(_, port)) => return port,
            Ok(other) => panic!("{other}"),
            Err(error) => {
                assert!(tokio::time::Instant::now() < deadline, "{error}");
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        }
    }
}

async fn serve(mut router: RouterSocket, ring: Ring, framing: Framing) {
    loop {
        let question = router.recv().await.unwrap().into_vec();
        let [peer, empty, start] = &question[..] else { panic!("{question:?}") };
        assert!(empty.is_empty(), "engines want an empty frame first");
        let start = u64::from_be_bytes(start[..].try_into().unwrap());
        let batches: Vec<_> = ring.lock().unwrap().iter().filter(|(seq, _)| *seq >= start).cloned().collect();
        let end = (u64::MAX, Bytes::new());
        for (seq, payload) in batches.into_iter().chain([end]) {
            let mut answer = ZmqMessage::from(peer.clone());
            answer.push_back(Bytes::new());
            if framing == Framing::Topic {
                let topic = if seq == u64::MAX { "" } else { TOPIC };
                answer.push_back(Bytes::from_static(topic.as_bytes()));
            }
            answer.push_back(Bytes::copy_from_slice(&seq.to_be_bytes()));
            answer.push_back(payload);
            router.send(answer).await.unwrap();
        }
    }
}
