//! A replica that joins reads the index of caches from one that knows it, before it is ready.
//!
//! Owns when that begins (what ranks publish is heard by then), whom it asks, and how long it is waited for. Replicas find each other by
//! notes: one asks, those that are ready answer with their address. Whatever fails costs warmth: replays and events fill slots as ever.

use super::Replicas;
use crate::declare::Address;
use crate::http::index::PATH;
use crate::http::index::format::{FormatError, Reader, Record};
use crate::lock::lock;
use crate::metrics::Text;
use crate::service::Service;
use crate::state::Note;
use crate::state::kv_stream::Unfit;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::task;
use tokio::time::{Instant, sleep, timeout};

/// Without it the replica is ready after so long.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Ranks that nothing connects us with by then are read of without them.
const LINKS_WAIT_MAX: Duration = Duration::from_secs(2);
/// Others that say nothing by then are not there.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// They are asked so often.
const ASKED_MAX: usize = 2;
/// Between two looks, and before another try.
const PAUSE: Duration = Duration::from_millis(50);
/// A replica that says nothing for so long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Most addresses of others that wait to be tried.
const FOUND_MAX: usize = 64;

/// What became of joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joined {
    /// Read to its end.
    Loaded,
    /// Nothing is placed by caches, or nobody publishes.
    NotNeeded,
    /// No other replica answered.
    NoPeer,
    /// It was not read to its end in time.
    Late,
}

impl Joined {
    const ALL: [Self; 4] = [Self::Loaded, Self::NotNeeded, Self::NoPeer, Self::Late];

    const fn word(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::NotNeeded => "not_needed",
            Self::NoPeer => "no_peer",
            Self::Late => "late",
        }
    }
}

/// One replica's side of it.
#[derive(Debug, Default)]
pub(super) struct Joining {
    /// Where others reach this one.
    address: OnceLock<String>,
    settled: AtomicBool,
    joined: OnceLock<Joined>,
    found: Mutex<VecDeque<String>>,
    came: Notify,
    slots: Mutex<BTreeMap<Result<(), Unfit>, u64>>,
}

/// Why a snapshot was not read to its end.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("{}", .0)]
    Http(#[from] reqwest::Error),
    #[error("it answered {0}")]
    Status(reqwest::StatusCode),
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("it said nothing for too long")]
    Silent,
    #[error("it broke off")]
    Cut,
    #[error("it is this replica itself")]
    Own,
}

impl Replicas {
    /// Where other replicas reach the data listener of this one: as said, or where it listens.
    pub async fn advertise_as(&self, said: Option<String>, listening: SocketAddr) {
        let address = match said {
            Some(said) => Some(said),
            None if listening.ip().is_unspecified() => {
                let own = self.towards_store().await;
                own.map(|ip| SocketAddr::new(ip, listening.port()).to_string())
            }
            None => Some(listening.to_string()),
        };
        match address {
            // Set once, at the start.
            Some(address) => drop(self.joining.address.set(address)),
            None => tracing::warn!("other replicas cannot read this one's index: say where by --advertise"),
        }
    }

    /// The address by which this machine reaches the store. Nothing is sent.
    async fn towards_store(&self) -> Option<IpAddr> {
        let store = self.store.config().server()?;
        let any = if store.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(any).await.ok()?;
        timeout(ANSWER_WAIT, socket.connect(store)).await.ok()?.ok()?;
        Some(socket.local_addr().ok()?.ip())
    }

    /// Whether the index of caches was read, or is not waited for any more.
    #[must_use]
    pub fn has_joined(&self) -> bool {
        self.joining.settled.load(Ordering::Relaxed)
    }

    /// What another replica noted.
    pub(super) fn heard(&self, service: &Service, note: Note) {
        match note {
            Note::IndexWanted if self.has_joined() => {
                if let Some(address) = self.joining.address.get() {
                    self.note(Note::IndexAt { address: address.clone() });
                }
            }
            Note::IndexAt { address } if !self.has_joined() => self.joining.found(address),
            Note::IndexWanted | Note::IndexAt { .. } => {}
            other => service.hear(other),
        }
    }

    /// What is counted of it.
    pub(crate) fn render_index(&self, text: &mut Text) {
        let name = "rankpin_index_joined_total";
        text.family(name, "counter", "What became of reading another replica's index at the start.");
        for joined in Joined::ALL {
            let count = u64::from(self.joining.joined.get() == Some(&joined));
            text.sample(name, &format!("outcome=\"{}\"", joined.word()), count);
        }
        let name = "rankpin_index_slots_total";
        text.family(name, "counter", "Slots of another replica's index, taken over or why not.");
        let slots = lock(&self.joining.slots);
        let count = |outcome: Result<(), Unfit>| slots.get(&outcome).copied().unwrap_or(0);
        text.sample(name, "outcome=\"taken\"", count(Ok(())));
        for unfit in Unfit::ALL {
            text.sample(name, &format!("outcome=\"{}\"", unfit.word()), count(Err(unfit)));
        }
    }
}

impl Joining {
    fn found(&self, address: String) {
        let mut found = lock(&self.found);
        if found.len() < FOUND_MAX && Address::parse(&address).is_ok() {
            found.push_back(address);
        }
        drop(found);
        self.came.notify_one();
    }

    fn take(&self) -> Option<String> {
        lock(&self.found).pop_front()
    }
}

/// Joins, once; returns when there is nothing more to wait for.
pub(super) async fn join(service: &Service, replicas: &Replicas) {
    if replicas.has_joined() {
        return;
    }
    while !replicas.has_loaded() {
        sleep(PAUSE).await;
    }
    let joined = timeout(WAIT_MAX, load(service, replicas)).await.unwrap_or(Joined::Late);
    match joined {
        Joined::Loaded => tracing::info!("the index of caches of another replica is loaded"),
        Joined::NotNeeded => {}
        Joined::NoPeer => tracing::info!("no other replica has an index of caches to read"),
        Joined::Late => tracing::warn!("no index of caches of another replica in time: it fills by events"),
    }
    service.join_index(false);
    let _ = replicas.joining.joined.set(joined);
    replicas.joining.settled.store(true, Ordering::SeqCst);
}

async fn load(service: &Service, replicas: &Replicas) -> Joined {
    if service.index_links().0 == 0 {
        return Joined::NotNeeded;
    }
    hear_ranks(service).await;
    let Ok(client) = crate::probe::client() else { return Joined::NoPeer };
    let mut asked = 0;
    loop {
        let Some(address) = replicas.joining.take() else {
            if asked == ASKED_MAX {
                return Joined::NoPeer;
            }
            asked += 1;
            replicas.note(Note::IndexWanted);
            // Either somebody answers, or nobody does.
            let _ = timeout(ANSWER_WAIT, replicas.joining.came.notified()).await;
            continue;
        };
        match read(service, replicas, &client, &address).await {
            Ok(()) => return Joined::Loaded,
            Err(error) => tracing::warn!(%address, %error, "its index of caches could not be read"),
        }
        // Another one may answer, or the same in a while.
        asked = 0;
        sleep(PAUSE).await;
    }
}

/// Until every rank whose events are wanted is listened to.
async fn hear_ranks(service: &Service) {
    let patience = Instant::now() + LINKS_WAIT_MAX;
    while Instant::now() < patience {
        let (wanted, connected) = service.index_links();
        if connected >= wanted {
            return;
        }
        sleep(PAUSE).await;
    }
}

async fn read(
    service: &Service,
    replicas: &Replicas,
    client: &reqwest::Client,
    address: &str,
) -> Result<(), ReadError> {
    let mut request = client.get(format!("http://{address}{PATH}"));
    if let Some(token) = &service.token {
        request = request.header(reqwest::header::AUTHORIZATION, token.as_header());
    }
    let sent = timeout(SILENCE_MAX, request.send()).await.map_err(|_| ReadError::Silent)?;
    let mut response = sent.map_err(reqwest::Error::without_url)?;
    if !response.status().is_success() {
        return Err(ReadError::Status(response.status()));
    }
    let mut reader = Reader::default();
    loop {
        let part = timeout(SILENCE_MAX, response.chunk()).await.map_err(|_| ReadError::Silent)?;
        let part = part.map_err(reqwest::Error::without_url)?.ok_or(ReadError::Cut)?;
        reader.push(&part);
        if take(service, replicas, &mut reader)? {
            return Ok(());
        }
    }
}

/// Takes over what has come; whether it was the end.
fn take(service: &Service, replicas: &Replicas, reader: &mut Reader) -> Result<bool, ReadError> {
    while let Some(record) = task::block_in_place(|| reader.next())? {
        if reader.life() == Some(replicas.store.config().writer) {
            return Err(ReadError::Own);
        }
        match record {
            Record::Slot(head, pieces) => {
                // Many blocks are no work for an async thread.
                let taken = task::block_in_place(|| service.take_slot(&head, &pieces));
                *lock(&replicas.joining.slots).entry(taken).or_default() += 1;
                tracing::debug!(worker = %head.worker, rank = head.rank, ?taken, "a slot of another replica");
            }
            Record::End(end) => {
                tracing::info!(slots = end.slots, left_out = end.left_out, "index snapshot read");
                return Ok(true);
            }
            Record::Other => {}
        }
    }
    Ok(false)
}
