//! The trace's words for effects, records and reports.

use routing::contract::{Cached, Entry, PrefillAsk, Prompt, Report, RouteRequest, Target, Topology};
use routing::flow::{Effect, PageChange};
use routing::hash::worker_hash;
use routing::id::{HoldId, Rank, Version};
use routing::page::{Certainty, Record};
use routing::time::Millis;

pub(super) fn effect(effect: &Effect, topology: &Topology) -> Option<String> {
    match effect {
        Effect::Route { request, timeout } => {
            let longest = Millis(request.deadline_ms.0 + request.wait_ms.0);
            assert_eq!(longest, *timeout, "the service must not hold what nobody waits for");
            Some(question(request, topology))
        }
        Effect::Respond(reply) => {
            let retry = reply.retry_after_s.map(|s| format!(" retry-after {s}")).unwrap_or_default();
            Some(format!("respond {}{retry} {}", reply.status, reply.body))
        }
        Effect::ReportNow => Some("report now".to_owned()),
        Effect::Resume => Some("resume".to_owned()),
        Effect::Count(counter) => Some(format!("#{}", counter.word())),
        Effect::SetHeader(..)
        | Effect::SetResponseHeader(..)
        | Effect::RemoveHeader(_)
        | Effect::Note(_)
        | Effect::Page(_) => None,
    }
}

fn question(request: &RouteRequest, topology: &Topology) -> String {
    let mut told = if request.dry_run { "ask dry".to_owned() } else { "ask".to_owned() };
    told.push_str(&known(request.cached, &request.unsent, topology));
    if request.wait_ms > Millis(0) {
        told.push_str(&format!(" wait {}", request.wait_ms.0));
    }
    if let Some(Prompt::Text { path, body, whole }) = request.prompt.as_deref() {
        let part = if *whole { "" } else { " the head" };
        told.push_str(&format!(" prompt {path}{part} {body}"));
    }
    if request.deadline_ms != Millis(30) {
        told.push_str(&format!(" within {}", request.deadline_ms.0));
    }
    if let Some(alias) = request.alias {
        told.push_str(&format!(" alias {}", alias.prefix()));
    }
    if let Some(prefill) = &request.prefill {
        let PrefillAsk { request, session, cached, named, unsent } = &**prefill;
        let session = if session.is_some() { "" } else { " without a session" };
        let named = named.as_ref().map(|named| format!(" at {}", target(named))).unwrap_or_default();
        let known = known(*cached, unsent, topology);
        told.push_str(&format!(" + prefill r{}{session}{named}{known}", request.0));
    }
    told
}

fn known(cached: Option<Cached>, unsent: &[Entry], topology: &Topology) -> String {
    let cached = cached.map(|cached| {
        let slot = slot(name(cached.worker_hash, topology), cached.rank);
        format!(" cached {slot} {}", version(cached.version))
    });
    let unsent: Vec<String> = unsent.iter().map(entry).collect();
    let unsent = if unsent.is_empty() { String::new() } else { format!(" unsent [{}]", unsent.join(", ")) };
    format!("{}{unsent}", cached.unwrap_or_default())
}

pub(super) fn change(change: &PageChange, topology: &Topology, written: bool) -> String {
    let told = match change {
        PageChange::Put(new) => format!("put {}", record(new, topology)),
        PageChange::Remove { version: of, .. } => format!("forget {}", version(*of)),
    };
    if written { told } else { format!("{told} (no change)") }
}

/// `bound w1/5 v3`, with the generation when it is not the first.
pub(super) fn record(record: &Record, topology: &Topology) -> String {
    let certainty = match record.certainty {
        Certainty::Bound => "bound",
        Certainty::Held => "held",
        Certainty::Gone => return format!("gone {}", version(record.version)),
        Certainty::Alias => return format!("alias of {}", record.aliased().unwrap().id.prefix()),
    };
    let generation = Some(record.generation).filter(|g| *g > 0).map(|g| format!(" g{g}")).unwrap_or_default();
    let slot = slot(name(record.worker_hash, topology), record.rank);
    format!("{certainty} {slot} {}{generation}", version(record.version))
}

pub(super) fn report(report: &Report) -> String {
    let entries: Vec<String> = report.entries.iter().map(entry).collect();
    let load: Vec<String> =
        report.in_flight.iter().map(|slot| format!("{}x{}", target(&slot.target), slot.count)).collect();
    format!("[{}] load [{}]", entries.join(", "), load.join(", "))
}

fn entry(entry: &Entry) -> String {
    match entry {
        Entry::Unknown => "unknown".to_owned(),
        Entry::Committed { hold: held, target: to, version: of, request, .. } => {
            format!("committed r{}{} {} {}", request.0, hold(*held), target(to), version(*of))
        }
        Entry::Failed { hold: held, request, .. } => format!("failed r{}{}", request.0, hold(*held)),
        Entry::Touched { version: of, .. } => format!("touched {}", version(*of)),
        Entry::Alias { alias, session, .. } => format!("alias {} of {}", alias.prefix(), session.id.prefix()),
        Entry::VmGone { vm } => format!("vm {} gone", vm.0),
        Entry::Released { version: of, .. } => format!("released {}", version(*of)),
        Entry::SlotFailed { target: to, failure, count } => {
            format!("slot {} failed x{count}: {failure:?}", target(to))
        }
        Entry::Prefilled { request } => format!("prefilled r{}", request.0),
        Entry::Ended { request } => format!("ended r{}", request.0),
        Entry::SlotAnswered { target: to } => format!("slot {} answered", target(to)),
    }
}

fn hold(hold: Option<HoldId>) -> String {
    hold.map(|hold| format!(" hold {}", hold.0)).unwrap_or_default()
}

fn target(target: &Target) -> String {
    slot(target.worker.as_str(), target.rank)
}

fn slot(worker: &str, rank: Option<Rank>) -> String {
    rank.map_or_else(|| worker.to_owned(), |rank| format!("{worker}/{rank}"))
}

fn name(hash: u64, topology: &Topology) -> &str {
    let known = topology.workers.iter().find(|w| worker_hash(&w.id) == hash);
    known.map_or("(gone)", |w| w.id.as_str())
}

/// `v3` when the service wrote it, `v3@101` when VM 101 did.
fn version(version: Version) -> String {
    if version.writer == 0 {
        format!("v{}", version.seq)
    } else {
        format!("v{}@{}", version.seq, version.writer)
    }
}
