//! From sockets to the state: decoding on threads of its own, in the order of each rank, with a bound on what is under way.
//!
//! A rank always goes through the same lane, so its order is kept. What is under way is bounded in bytes over all lanes: at the bound
//! subscriptions stop reading, their publishers' queues fill, and what these drop comes back as a gap and a replay. Nothing is
//! dropped here.

use super::decode::{PAYLOAD_BYTES_MAX, decode};
use super::frames::Numbered;
use super::hub::{Hub, Rank};
use super::skips::Skips;
use super::slices::Slices;
use crate::state::kv_stream::{Attempt, Frame, Input, Link};
use bytes::Bytes;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use xxhash_rust::xxh3::xxh3_64;

/// Payloads under way at once, in KiB.
const UNDER_WAY_KIB: usize = 64 << 10;
/// Pieces of work that wait for one lane; each is a burst of one rank.
const LANE_QUEUE: usize = 1024;
/// Most lanes. Applying is serial in any case, decoding costs about as much.
const LANES_MAX: usize = 4;
/// Where decoded inputs go: the service, or a test.
pub trait Sink: Send + Sync + 'static {
    /// Takes inputs of one rank, in order.
    fn take(&self, rank: &Rank, inputs: Vec<Input>);
    /// Takes how the rank's events reach us now.
    fn link(&self, rank: &Rank, link: Link);
}

/// One thing of a rank, not decoded yet.
#[derive(Clone, Debug)]
pub(super) enum Raw {
    Live(Numbered),
    Replayed(Attempt, Numbered),
    Input(Input),
}

struct Work {
    rank: Arc<Rank>,
    raws: Vec<Raw>,
    _under_way: Option<OwnedSemaphorePermit>,
}

/// See the module. Its threads end when it is dropped.
#[derive(Clone)]
pub struct Pipeline {
    lanes: Arc<[mpsc::Sender<Work>]>,
    under_way: Arc<Semaphore>,
}

impl Pipeline {
    /// Starts the lanes.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(sink: &Arc<dyn Sink>, hub: &Arc<Hub>) -> io::Result<Self> {
        let count = thread::available_parallelism().map_or(1, |n| n.get().div_ceil(2)).min(LANES_MAX);
        let lane = |number: usize| {
            let (sender, work) = mpsc::channel(LANE_QUEUE);
            let lane = Lane { sink: Arc::clone(sink), hub: Arc::clone(hub) };
            thread::Builder::new().name(format!("kv-decode-{number}")).spawn(move || lane.run(work))?;
            Ok(sender)
        };
        let lanes = (0..count).map(lane).collect::<io::Result<Vec<_>>>()?.into();
        Ok(Self { lanes, under_way: Arc::new(Semaphore::new(UNDER_WAY_KIB)) })
    }

    /// Hands a rank's things on, and waits while too much is under way. False: the lane is gone.
    pub(super) async fn send(&self, rank: &Arc<Rank>, raws: Vec<Raw>) -> bool {
        let bytes: usize = raws.iter().map(Raw::bytes).sum();
        let kib = u32::try_from(bytes.div_ceil(1024).min(UNDER_WAY_KIB)).unwrap_or(u32::MAX);
        // The semaphore is never closed. What weighs nothing (an end, a failure) waits for nothing.
        let under_way = match kib {
            0 => None,
            kib => Arc::clone(&self.under_way).acquire_many_owned(kib).await.ok(),
        };
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(rank);
        let lane = usize::try_from(hash).unwrap_or(0).checked_rem(self.lanes.len()).unwrap_or(0);
        let Some(lane) = self.lanes.get(lane) else { return false };
        lane.send(Work { rank: Arc::clone(rank), raws, _under_way: under_way }).await.is_ok()
    }
}

impl Raw {
    fn bytes(&self) -> usize {
        match self {
            Self::Live(numbered) | Self::Replayed(_, numbered) => numbered.payload.len(),
            Self::Input(_) => 0,
        }
    }
}

struct Lane {
    sink: Arc<dyn Sink>,
    hub: Arc<Hub>,
}

impl Lane {
    fn run(&self, mut work: mpsc::Receiver<Work>) {
        while let Some(work) = work.blocking_recv() {
            let (mut skips, mut slices) = (Skips::default(), Slices::default());
            let _whole = self.hub.a_batch();
            let mut take = |inputs| self.sink.take(&work.rank, inputs);
            for raw in work.raws {
                slices.add(self.input(raw, &mut skips), &mut take);
            }
            slices.end(&mut take);
            self.hub.left_out(&skips);
        }
    }

    fn input(&self, raw: Raw, skips: &mut Skips) -> Input {
        match raw {
            Raw::Live(numbered) => Input::Live(self.frame(&numbered, skips)),
            Raw::Replayed(attempt, numbered) => Input::Replayed(attempt, self.frame(&numbered, skips)),
            Raw::Input(input) => input,
        }
    }

    fn frame(&self, numbered: &Numbered, skips: &mut Skips) -> Frame {
        self.hub.batches.fetch_add(1, Ordering::Relaxed);
        let bytes = u64::try_from(numbered.payload.len()).unwrap_or(u64::MAX);
        self.hub.bytes.fetch_add(bytes, Ordering::Relaxed);
        Frame {
            seq: numbered.seq,
            stamp: xxh3_64(&numbered.payload),
            batch: decode(&numbered.payload, skips).batch,
        }
    }
}

/// A payload past the limit is not kept until it is decoded: an empty one says as much.
pub(super) fn limited(numbered: Numbered) -> Numbered {
    match numbered.payload.len() > PAYLOAD_BYTES_MAX {
        true => Numbered { payload: Bytes::new(), ..numbered },
        false => numbered,
    }
}
