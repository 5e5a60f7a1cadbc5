//! What the watching VM does with the service's answers: blobs for shared data, changes of pages, and the lease that elects it.
//!
//! Pure: the filter reads and writes shared data around it. The cursor is stored there too, so that a successor goes on from it.

use crate::contract::{Fleet, Move, Topology, WATCH_PATH, WatchReply};
use crate::flow::PageChange;
use crate::hash::worker_hash;
use crate::id::Epoch;
use crate::page::{Certainty, Record};
use crate::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

/// How long one poll waits at the service: also how long an Envoy hears nothing from a service that hangs, about.
pub const POLL_WAIT: Millis = Millis(4_000);
/// How long the filter waits for a poll's answer: longer than the service holds it.
pub const POLL_TIMEOUT: Millis = Millis(6_000);
/// A watcher that does not renew its lease for this long is succeeded.
pub const LEASE: Millis = Millis(800);

/// Where the watch stands. Kept in shared data beside the blobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Life of the service.
    pub epoch: Epoch,
    /// Last cursor seen.
    pub cursor: u64,
    /// Version of the stored topology.
    pub topology: u64,
    /// Version of the stored fleet.
    pub fleet: u64,
    /// Grows when moves were lost: cached bindings of another generation are checked again.
    pub generation: u16,
    /// Topologies stored so far.
    pub topologies: u32,
    /// Fleets stored so far.
    pub fleets: u32,
}

/// The fleet blob as stored: what changes often.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFleet {
    /// States and loads.
    pub fleet: Fleet,
    /// See [`Position::generation`].
    pub generation: u16,
    /// Randomness from the service.
    pub salt: u64,
}

/// What an answer changes in shared data, to be written in this order: pages, blobs, position, gauge.
#[derive(Debug, PartialEq, Eq)]
pub struct Applied {
    /// Bindings that moved or were released.
    pub pages: Vec<PageChange>,
    /// A new topology.
    pub topology: Option<Topology>,
    /// A new fleet, always together with a new generation or salt.
    pub fleet: Option<StoredFleet>,
    /// The position after it.
    pub position: Position,
}

impl Position {
    /// Path of the next poll.
    #[must_use]
    pub fn path(&self, node: &str) -> String {
        let (epoch, after, topology, fleet) = (self.epoch.0, self.cursor, self.topology, self.fleet);
        let node = percent_encoded(node);
        let wait = POLL_WAIT.0;
        format!(
            "{WATCH_PATH}?node={node}&epoch={epoch}&after={after}&topology={topology}&fleet={fleet}&wait_ms={wait}"
        )
    }

    /// Value of the gauge that tells every VM what is stored: topologies and fleets counted apart.
    #[must_use]
    pub const fn gauge(&self) -> u64 {
        ((self.topologies as u64) << 32) | self.fleets as u64
    }

    /// Takes an answer in. `now` stamps moved bindings; `known` is the stored fleet, kept when the answer brings none.
    #[must_use]
    pub fn apply(&self, mut reply: WatchReply, known: &StoredFleet, now: Timestamp) -> Applied {
        let restarted = self.epoch != Epoch(0) && self.epoch != reply.epoch;
        let news = reply.topology.as_ref().map(|topology| topology.version);
        if restarted && !known.fleet.workers.is_empty() {
            // A new life that knows no worker yet is one that lost its memory, not a fleet that went away.
            reply.topology = reply.topology.filter(|topology| !topology.workers.is_empty());
            reply.fleet = reply.fleet.filter(|fleet| !fleet.workers.is_empty());
        }
        let lost = restarted || (reply.gap && self.epoch != Epoch(0));
        let generation = self.generation.wrapping_add(u16::from(lost));
        let mut position = self.clone();
        position.epoch = reply.epoch;
        position.cursor = reply.cursor.0;
        position.generation = generation;
        if let Some(version) = news {
            position.topology = version;
        }
        if reply.topology.is_some() {
            position.topologies = position.topologies.wrapping_add(1);
        }
        let fleet = (reply.fleet.is_some() || lost || reply.topology.is_some()).then(|| StoredFleet {
            fleet: reply.fleet.unwrap_or_else(|| known.fleet.clone()),
            generation,
            salt: reply.salt,
        });
        if let Some(stored) = &fleet {
            position.fleet = stored.fleet.version;
            position.fleets = position.fleets.wrapping_add(1);
        }
        let pages = reply.moves.iter().map(|moved| page_change(moved, generation, now)).collect();
        Applied { pages, topology: reply.topology, fleet, position }
    }
}

/// Topologies and fleets counted by a gauge value.
#[must_use]
pub const fn gauge_parts(gauge: u64) -> (u64, u64) {
    (gauge >> 32, gauge & 0xffff_ffff)
}

fn page_change(moved: &Move, generation: u16, now: Timestamp) -> PageChange {
    let target = moved.target.as_ref();
    PageChange::Put(Record {
        id: moved.session.id,
        rank_hash: moved.session.rank_hash,
        version: moved.version,
        worker_hash: target.map_or(0, |target| worker_hash(&target.worker)),
        rank: target.and_then(|target| target.rank),
        touched_s: Record::seconds(now),
        generation,
        certainty: if target.is_some() { Certainty::Bound } else { Certainty::Gone },
    })
}

fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Bytes of a lease: holder and expiry.
const LEASE_BYTES: usize = 16;

/// The lease after a claim by `me`, or `None` while another VM holds it.
#[must_use]
pub fn claim(current: Option<&[u8]>, me: Epoch, now: Timestamp) -> Option<Vec<u8>> {
    if let Some((holder, until)) = current.and_then(read_lease) {
        let alive = now < until && until.since(now) <= LEASE;
        if holder != me && alive {
            return None;
        }
    }
    let mut lease = Vec::with_capacity(LEASE_BYTES);
    lease.extend_from_slice(&me.0.to_le_bytes());
    lease.extend_from_slice(&(now + LEASE).0.to_le_bytes());
    Some(lease)
}

fn read_lease(bytes: &[u8]) -> Option<(Epoch, Timestamp)> {
    let (holder, rest) = bytes.split_first_chunk::<8>()?;
    let (until, _) = rest.split_first_chunk::<8>()?;
    Some((Epoch(u64::from_le_bytes(*holder)), Timestamp(u64::from_le_bytes(*until))))
}
