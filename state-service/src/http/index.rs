//! `GET /v1/index/snapshot`: the index of caches for a replica that joins, one slot after the other, each as it is when it is read.

pub(crate) mod format;

use super::lines::{self, Source};
use super::problem::Problem;
use crate::service::Service;
use crate::state::kv_stream::Unfit;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use routing::id::WorkerId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task;
use tokio::time::sleep;

/// Where it is asked for.
pub(crate) const PATH: &str = "/v1/index/snapshot";
/// Snapshots read at once; another one is asked to come again.
pub(crate) const AT_ONCE_MAX: usize = 1;
/// Most bytes of one; slots that do not fit are left out, and counted at its end.
const BYTES_MAX: usize = 1 << 30;
/// A slot that changes while it is read is read again so often.
const READS_MAX: usize = 3;
/// Pause before.
const PAUSE: Duration = Duration::from_millis(20);

/// `GET /v1/index/snapshot`.
pub(crate) async fn snapshot(State(service): State<Arc<Service>>) -> Result<Response, Problem> {
    let place = Arc::clone(&service.kv_hub.snapshots)
        .try_acquire_owned()
        .map_err(|_| Problem::busy("snapshots_full", "another replica reads the index of caches"))?;
    let slots = service.index_slots().into_iter();
    let first = Some(format::begin(service.epoch.0).into());
    let snapshot =
        Snapshot { service, slots, first, told: 0, left_out: 0, bytes: 0, ended: false, _place: place };
    let mut response = lines::answer(snapshot);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    Ok(response)
}

struct Snapshot {
    service: Arc<Service>,
    slots: std::vec::IntoIter<(WorkerId, u32)>,
    first: Option<Bytes>,
    told: u32,
    left_out: u32,
    bytes: usize,
    ended: bool,
    _place: OwnedSemaphorePermit,
}

impl Source for Snapshot {
    async fn next(mut self) -> (Self, Option<Bytes>) {
        if let Some(first) = self.first.take() {
            return (self, Some(first));
        }
        while let Some((worker, rank)) = self.slots.next() {
            let slot = read(&self.service, worker, rank).await;
            let fits = |slot: &Vec<u8>| self.bytes + slot.len() <= BYTES_MAX;
            match slot.filter(fits) {
                Some(slot) => {
                    self.bytes += slot.len();
                    self.told += 1;
                    return (self, Some(slot.into()));
                }
                None => self.left_out += 1,
            }
        }
        let end = (!self.ended).then(|| format::end(self.told, self.left_out).into());
        self.ended = true;
        (self, end)
    }

    /// It is cut where it is: without its end it is not whole.
    fn too_slow(&mut self) -> Bytes {
        Bytes::new()
    }
}

/// A slot's record; `None`: it is in doubt, or changes all the time.
async fn read(service: &Arc<Service>, worker: WorkerId, rank: u32) -> Option<Vec<u8>> {
    for _ in 0..READS_MAX {
        let (service, worker) = (Arc::clone(service), worker.clone());
        let slot = move || {
            let (head, pieces) = service.read_slot(&worker, rank)?;
            Ok(format::slot(&head, &pieces))
        };
        match task::spawn_blocking(slot).await {
            Ok(Ok(slot)) => return slot,
            Ok(Err(Unfit::Busy)) => sleep(PAUSE).await,
            Ok(Err(_)) | Err(_) => return None,
        }
    }
    None
}
