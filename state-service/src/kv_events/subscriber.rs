//! One rank's subscription: connect, subscribe, hand on what comes, replay what the state asks for, and connect again.
//!
//! A SUB socket a connection (`zeromq`'s own reconnecting waits up to 30 s and cannot be seen in the stream of messages): when it is
//! lost a new one is made, and told to the stream before anything it brings.

use super::frames;
use super::hub::{Ask, Connected, Hub, Rank};
use super::pipeline::{Pipeline, Raw, Sink, limited};
use super::replay;
use crate::state::kv_stream::{Input, Link, ReplayFailure};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;
use zeromq::{Socket, SocketEvent, SocketOptions, SocketRecv, SubSocket, ZmqMessage};

/// A connection that is not made by then has failed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two tries to connect: doubled each time, up to a second.
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// Messages handed on at once.
const BURST: usize = 64;
/// Replays under way at once, all ranks together: a restart of the network lets every rank ask.
pub(super) const REPLAYS_MAX: usize = 128;

/// Where a rank's events are published.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// Whose.
    pub rank: Rank,
    /// `tcp://host:port` to subscribe to.
    pub endpoint: String,
    /// `tcp://host:port` of the replay socket, if there is one.
    pub replay: Option<String>,
    /// Prefix of the topics wanted; empty: all.
    pub topic: String,
}

/// What all subscriptions share.
pub struct Shared {
    /// Where decoded events go.
    pub sink: Arc<dyn Sink>,
    /// Finds the tasks.
    pub hub: Arc<Hub>,
    /// Decodes.
    pub pipeline: Pipeline,
    places: Semaphore,
}

impl Shared {
    /// Starts what they share.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(sink: Arc<dyn Sink>, hub: Arc<Hub>) -> std::io::Result<Arc<Self>> {
        let pipeline = Pipeline::start(&sink, &hub)?;
        Ok(Arc::new(Self { sink, hub, pipeline, places: Semaphore::new(REPLAYS_MAX) }))
    }
}

pub(super) fn options() -> SocketOptions {
    let mut options = SocketOptions::default();
    options.connect_timeout(CONNECT_TIMEOUT);
    options
}

/// Keeps one rank subscribed until it is aborted.
pub async fn keep(shared: Arc<Shared>, source: Source) {
    let rank = Arc::new(source.rank.clone());
    let mut entry = shared.hub.enter(&rank);
    let mut back_off = BACK_OFF_MIN;
    loop {
        shared.sink.link(&rank, Link::Connecting);
        let mut socket = SubSocket::with_options(options());
        let events = socket.monitor();
        let made = async {
            socket.subscribe(&source.topic).await?;
            socket.connect(&source.endpoint).await
        };
        match made.await {
            Ok(()) => {
                back_off = BACK_OFF_MIN;
                let _connected = Connected::new(&shared.hub);
                shared.sink.link(&rank, Link::Up);
                let subscription = Subscription { shared: &shared, source: &source, rank: &rank };
                subscription.follow(socket, events, &mut entry.asks).await;
            }
            Err(error) => {
                tracing::debug!(worker = %rank.worker, rank = rank.rank, %error, "no KV events");
                drop(socket);
            }
        }
        sleep(back_off).await;
        back_off = (back_off * 2).min(BACK_OFF_MAX);
    }
}

struct Subscription<'a> {
    shared: &'a Shared,
    source: &'a Source,
    rank: &'a Arc<Rank>,
}

type Events = futures_channel::mpsc::Receiver<SocketEvent>;

impl Subscription<'_> {
    /// Until the connection is lost.
    async fn follow(
        &self,
        mut socket: SubSocket,
        mut events: Events,
        asks: &mut watch::Receiver<Option<Ask>>,
    ) {
        self.send(vec![Raw::Input(Input::Connected)]).await;
        // An ask from before is of the connection before: `Connected` makes a new one.
        let mut replay = std::pin::pin!(self.answer(None));
        loop {
            // In no fixed order: a busy stream must not keep a replay waiting.
            tokio::select! {
                changed = asks.changed() => {
                    let Ok(()) = changed else { return };
                    let ask = *asks.borrow_and_update();
                    replay.set(self.answer(ask));
                }
                message = socket.recv() => match message {
                    Ok(message) => self.burst(&mut socket, message).await,
                    Err(_) => return,
                },
                event = events.recv() => match event {
                    Ok(SocketEvent::Disconnected(_)) | Err(_) => return,
                    Ok(_) => {}
                },
                reached = &mut replay => {
                    if !reached {
                        // Neither is the publisher, most likely: a peer that lost its power says no goodbye.
                        return;
                    }
                    replay.set(self.answer(None));
                }
            }
        }
    }

    /// Fulfils one ask; without one waits for ever. False: the publisher could not be reached.
    async fn answer(&self, ask: Option<Ask>) -> bool {
        let Some(ask) = ask else { return std::future::pending().await };
        let Some(endpoint) = &self.source.replay else {
            let failed = Input::ReplayFailed(ask.attempt, ReplayFailure::Unavailable);
            self.send(vec![Raw::Input(failed)]).await;
            return true;
        };
        replay::make(&self.shared.pipeline, &self.shared.places, self.rank, endpoint, ask).await
    }

    /// Hands on a message and all that came with it.
    async fn burst(&self, socket: &mut SubSocket, first: ZmqMessage) {
        let mut raws = Vec::new();
        self.note(&mut raws, first);
        while raws.len() < BURST {
            tokio::select! {
                biased;
                Ok(message) = socket.recv() => self.note(&mut raws, message),
                () = std::future::ready(()) => break,
            }
        }
        self.send(raws).await;
    }

    fn note(&self, raws: &mut Vec<Raw>, message: ZmqMessage) {
        match frames::live(&message.into_vec()) {
            Some(batch) => raws.push(Raw::Live(limited(batch))),
            None => drop(self.shared.hub.bad_messages.fetch_add(1, Ordering::Relaxed)),
        }
    }

    async fn send(&self, raws: Vec<Raw>) {
        if !raws.is_empty() {
            self.shared.pipeline.send(self.rank, raws).await;
        }
    }
}
