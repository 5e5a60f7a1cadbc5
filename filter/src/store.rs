//! Envoy's shared data: pages of cached bindings, the topology and fleet blobs, counters. Keys are a fixed set.

use crate::host;
use routing::contract::Topology;
use routing::flow::PageChange;
use routing::header::shared;
use routing::page;
use routing::seat;
use routing::vm::Vm;
use routing::watch::{Position, StoredFleet, gauge_parts};

/// Tries of a compare-and-swap before a change is given up (it is a cache: the next turn asks the service).
const TRIES_MAX: u32 = 8;
/// Tries for a number; each lost one means that another VM got through, so with few threads this is never reached.
const NUMBER_TRIES_MAX: u32 = 1024;

/// Adds one to a number in shared data and returns it: exact among VMs, but for the first of all calls at the same moment.
pub(crate) fn next_number(key: &str) -> u64 {
    let mut next = 0;
    for _ in 0..NUMBER_TRIES_MAX {
        let (bytes, cas) = host::shared(key).unwrap_or_default();
        next = bytes.first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b)).wrapping_add(1);
        if host::set_shared(key, &next.to_le_bytes(), cas) {
            break;
        }
    }
    next
}

/// A number in shared data that only the watching VM writes; 0 before it did.
pub(crate) fn number(key: &str) -> u32 {
    let bytes = host::shared(key).map(|(bytes, _)| bytes).unwrap_or_default();
    bytes.first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

pub(crate) fn put_number(key: &str, number: u32) {
    host::set_shared(key, &number.to_le_bytes(), 0);
}

/// Creates all pages, unless another VM did; its geometry counts for everyone. Returns (pages, bytes of a page).
pub(crate) fn open_pages(count: u32, bytes: usize) -> (u32, usize) {
    if let Some(geometry) = host::shared(shared::PAGES).and_then(|(value, _)| geometry(&value)) {
        return geometry;
    }
    // Before the key that says so: a page must exist before anyone swaps it, or two VMs overwrite each other.
    for n in 0..count {
        host::set_shared(&shared::page(n), &page::empty(), 0);
    }
    for n in 0..shared::CURSORS {
        host::set_shared(&shared::cursor(n), &0u64.to_le_bytes(), 0);
    }
    for n in 0..shared::SEATS {
        host::set_shared(&shared::seat(n), &seat::free(), 0);
    }
    host::set_shared(shared::PAGES, format!("{count} {bytes}").as_bytes(), 0);
    (count, bytes)
}

fn geometry(value: &[u8]) -> Option<(u32, usize)> {
    let (count, bytes) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    Some((count.parse().ok()?, bytes.parse().ok()?))
}

pub(crate) fn page_bytes(n: u32) -> Option<Vec<u8>> {
    host::shared(&shared::page(n)).map(|(bytes, _)| bytes)
}

/// Applies a change; false when the page changed under each try.
pub(crate) fn change_page(change: &PageChange, pages: (u32, usize)) -> bool {
    let key = shared::page(page::page_of(change.session(), pages.0));
    for _ in 0..TRIES_MAX {
        let Some((old, cas)) = host::shared(&key) else { return false };
        let Some(new) = change.apply(&old, pages.1) else { return true };
        if host::set_shared(&key, &new, cas) {
            return true;
        }
    }
    false
}

/// Loads what changed between two gauge values into the VM.
pub(crate) fn load(vm: &mut Vm, seen: u64, stored: u64) {
    let differs = gauge_parts(seen).0 != gauge_parts(stored).0;
    vm.take_over(host::now(), differs.then(topology).flatten().as_ref(), fleet().as_ref());
}

fn topology() -> Option<Topology> {
    serde_json::from_slice(&blob(shared::TOPOLOGY)?).ok()
}

pub(crate) fn fleet() -> Option<StoredFleet> {
    serde_json::from_slice(&blob(shared::FLEET)?).ok()
}

pub(crate) fn position() -> Position {
    blob(shared::POSITION).and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

pub(crate) fn put_topology(topology: &Topology) {
    put(shared::TOPOLOGY, serde_json::to_vec(topology));
}

pub(crate) fn put_fleet(fleet: &StoredFleet) {
    put(shared::FLEET, serde_json::to_vec(fleet));
}

pub(crate) fn put_position(position: &Position) {
    put(shared::POSITION, serde_json::to_vec(position));
}

fn blob(key: &str) -> Option<Vec<u8>> {
    host::shared(key).map(|(bytes, _)| bytes)
}

/// Writes a blob; a value that cannot be written as JSON (there is none) leaves the old one.
fn put(key: &str, json: serde_json::Result<Vec<u8>>) {
    if let Ok(bytes) = json {
        host::set_shared(key, &bytes, 0);
    }
}
