//! One rank's sockets: a PUB that sends its batches, a ROUTER that replays them, both closed and opened when a test says so. Does not
//! know what is in a batch.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hyper::body::Bytes;
use tokio::sync::{mpsc, oneshot};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::feed::Feed;
use super::ports::RankPorts;
use super::ring::Batch;
use crate::door::Port;

/// Orders waiting at once.
pub(crate) const ORDERS_MAX: usize = 16;
/// Longest one replayed batch may take to be taken over; a peer that reads no more does not hold the rank up.
const REPLY_MAX: Duration = Duration::from_secs(5);
/// What ends a replay.
const END: [u8; 8] = [0xff; 8];

/// Opens (`true`) or closes; answered once it is so, with what was before.
pub(crate) type Order = (bool, oneshot::Sender<anyhow::Result<bool>>);

/// The sockets of one rank.
struct Sockets {
    live: PubSocket,
    replay: Option<RouterSocket>,
}

impl Sockets {
    async fn open(ports: &RankPorts) -> anyhow::Result<Self> {
        let mut live = PubSocket::new();
        live.bind_listener(listener(&ports.live)?).await.context("events")?;
        let replay = match &ports.replay {
            Some(port) => {
                let mut router = RouterSocket::new();
                router.bind_listener(listener(port)?).await.context("replay")?;
                Some(router)
            }
            None => None,
        };
        Ok(Self { live, replay })
    }

    /// Closed for sure when this returns: nobody listens, and dropping ends the connections.
    async fn close(mut self) {
        self.live.unbind_all().await;
        if let Some(router) = &mut self.replay {
            router.unbind_all().await;
        }
    }

    async fn asked(&mut self) -> Option<ZmqMessage> {
        match &mut self.replay {
            Some(router) => router.recv().await.ok(),
            None => std::future::pending().await,
        }
    }
}

fn listener(port: &Port) -> std::io::Result<std::net::TcpListener> {
    port.open()?.into_std()
}

/// One rank's publisher.
pub(crate) struct Publisher {
    feed: Arc<Feed>,
    ports: RankPorts,
    topic: Bytes,
    orders: mpsc::Receiver<Order>,
    sockets: Option<Sockets>,
}

impl Publisher {
    /// Opens the sockets.
    ///
    /// # Errors
    /// They cannot be.
    pub(crate) async fn open(
        feed: Arc<Feed>,
        ports: RankPorts,
        topic: &str,
        orders: mpsc::Receiver<Order>,
    ) -> anyhow::Result<Self> {
        let sockets = Some(Sockets::open(&ports).await?);
        Ok(Self { feed, ports, topic: Bytes::copy_from_slice(topic.as_bytes()), orders, sockets })
    }

    /// Publishes and replays, one thing at a time, until nobody can give orders any more.
    pub(crate) async fn run(mut self) {
        let feed = Arc::clone(&self.feed);
        loop {
            let is_stalled = feed.is_stalled();
            tokio::select! {
                biased;
                order = self.orders.recv() => match order {
                    Some((open, done)) => {
                        let _ = done.send(self.set(open).await);
                    }
                    None => return,
                },
                request = asked(self.sockets.as_mut()), if !is_stalled => {
                    if let Some(request) = request {
                        self.replay(&request).await;
                    }
                }
                batch = feed.next() => {
                    if let Some((batch, times)) = batch {
                        self.send(&batch, times).await;
                    }
                }
            }
        }
    }

    async fn set(&mut self, open: bool) -> anyhow::Result<bool> {
        let was = self.sockets.is_some();
        match self.sockets.take() {
            Some(sockets) if open => self.sockets = Some(sockets),
            Some(sockets) => sockets.close().await,
            None if open => self.sockets = Some(Sockets::open(&self.ports).await?),
            None => {}
        }
        Ok(was)
    }

    async fn send(&mut self, batch: &Batch, times: u64) {
        let Some(sockets) = &mut self.sockets else { return };
        for _ in 0..times {
            let frames = [self.topic.clone(), seq_frame(batch.seq), batch.payload.clone()];
            // What cannot be sent is lost, as with any PUB.
            let _ = sockets.live.send(message(frames)).await;
        }
    }

    /// Identity, an empty frame and a sequence are a request; anything else gets no answer, as from an engine.
    async fn replay(&mut self, request: &ZmqMessage) {
        let frames: Vec<&Bytes> = request.iter().collect();
        let [identity, empty, start] = frames[..] else { return };
        let (true, Ok(start)) = (empty.is_empty(), <[u8; 8]>::try_from(&start[..])) else { return };
        let Some(router) = self.sockets.as_mut().and_then(|sockets| sockets.replay.as_mut()) else { return };
        let has_topic = self.feed.replays_topic();
        let reply = |topic: &Bytes, seq: Bytes, payload: Bytes| {
            let topic = has_topic.then(|| topic.clone());
            let start = [identity.clone(), Bytes::new()];
            message(start.into_iter().chain(topic).chain([seq, payload]))
        };
        let end = reply(&Bytes::new(), Bytes::from_static(&END), Bytes::new());
        let batches = self.feed.replay(u64::from_be_bytes(start));
        let batches =
            batches.into_iter().map(|batch| reply(&self.topic, seq_frame(batch.seq), batch.payload));
        for frames in batches.chain([end]) {
            // The asker has gone or does not read.
            let Ok(Ok(())) = tokio::time::timeout(REPLY_MAX, router.send(frames)).await else { return };
        }
    }
}

async fn asked(sockets: Option<&mut Sockets>) -> Option<ZmqMessage> {
    match sockets {
        Some(sockets) => sockets.asked().await,
        None => std::future::pending().await,
    }
}

fn seq_frame(seq: u64) -> Bytes {
    Bytes::copy_from_slice(&seq.to_be_bytes())
}

fn message(frames: impl IntoIterator<Item = Bytes>) -> ZmqMessage {
    let mut frames = frames.into_iter();
    let mut message = ZmqMessage::from(frames.next().unwrap_or_default());
    frames.for_each(|frame| message.push_back(frame));
    message
}
