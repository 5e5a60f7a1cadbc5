//! The service towards engines' events: which ranks to listen to, what was heard, and replays the state wants.

use super::{Service, done};
use crate::declare::Host;
use crate::declare::kv_events::KvEvents;
use crate::http::problem::Problem;
use crate::kv_events::hub::{Ask, Rank};
use crate::kv_events::pipeline::Sink;
use crate::kv_events::push::Push;
use crate::kv_events::run::Wanted;
use crate::kv_events::slices;
use crate::metrics::Text;
use crate::state::kv_stream::{Attempt, Input, Link, ReplayFailure};
use crate::state::{Command, Endpoint, KvView, Reply, Worker};
use axum::http::StatusCode;
use routing::contract::{Policy, PoolInfo, Target};
use routing::id::WorkerId;
use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

impl Sink for Service {
    /// A refusal means that the worker, or the rank, went away meanwhile.
    fn take(&self, rank: &Rank, inputs: Vec<Input>) {
        self.kv(&rank.worker, rank.rank, inputs);
    }

    fn link(&self, rank: &Rank, link: Link) {
        self.apply(Command::KvLink { worker: rank.worker.clone(), rank: rank.rank, link });
    }
}

impl Service {
    pub(crate) fn kv(&self, worker: &WorkerId, rank: u32, inputs: Vec<Input>) -> Reply {
        self.apply(Command::Kv { worker: worker.clone(), rank, inputs })
    }

    /// Takes a batch that was pushed, and tells how its rank stands then.
    ///
    /// # Errors
    /// [`Problem`]: no such worker or rank, or the rank is listened to: two sources would contradict each other.
    pub fn push_kv(&self, push: Push) -> Result<KvView, Problem> {
        let Push { worker, rank, frame } = push;
        let rank = Rank { worker, rank };
        if self.kv_hub.listens(&rank) {
            let detail = format!(
                "rank {} of {} is subscribed to; declare its kv_events \"off\"",
                rank.rank, rank.worker
            );
            return Err(Problem::new(
                StatusCode::CONFLICT,
                "kv_events_subscribed",
                "The rank has a source",
                detail,
            ));
        }
        done(self.apply(Command::KvLink {
            worker: rank.worker.clone(),
            rank: rank.rank,
            link: Link::Pushed,
        }))?;
        let pushing = self.kv_hub.pushing.lock().unwrap_or_else(PoisonError::into_inner);
        slices::each(Input::Live(frame), |inputs| done(self.kv(&rank.worker, rank.rank, inputs)))?;
        drop(pushing);
        let target = Target { worker: rank.worker, rank: Some(routing::id::Rank(rank.rank)) };
        let gone = || Problem::internal("the worker was removed meanwhile");
        self.lock().kv_view(self.clock.now(), &target).ok_or_else(gone)
    }

    /// Every endpoint whose ranks' events are wanted.
    pub fn kv_wanted(&self) -> BTreeSet<Wanted> {
        let state = self.lock();
        let mut wanted = BTreeSet::new();
        for worker in state.workers() {
            let pool = state.pools().find(|pool| pool.name == worker.spec().pool);
            let by_pool = pool.is_some_and(places_by_events);
            let each = worker.endpoints().iter().enumerate();
            let number = state.kv_source_number(worker);
            let want = |(index, endpoint)| want((worker, number), index, endpoint, by_pool);
            wanted.extend(each.filter_map(want));
        }
        wanted
    }

    /// Hands a replay on; a rank without a subscription has none, and the state must know.
    pub(super) fn replay(&self, worker: WorkerId, rank: u32, attempt: Attempt, from: u64) {
        let rank = Rank { worker, rank };
        if !self.kv_hub.ask(&rank, Ask { attempt, from }) {
            self.kv(&rank.worker, rank.rank, vec![Input::ReplayFailed(attempt, ReplayFailure::Unavailable)]);
        }
    }

    pub(super) fn render_kv(&self, text: &mut Text) {
        let state = self.lock();
        let (index, stream) = state.kv_counts();
        let help = "Batches and replays of engines' event streams by what became of them.";
        each(text, "rankpin_kv_stream_total", "outcome", help, stream);
        let help = "Blocks of events that the index took in, by what they did.";
        let taken = [
            ("stored", index.stored),
            ("again", index.again),
            ("removed", index.removed),
            ("copy_removed", index.copies_removed),
            ("cleared", index.clears),
        ];
        each(text, "rankpin_kv_blocks_total", "outcome", help, taken);
        let help = "Blocks of events that the index did not take in, by reason.";
        each(text, "rankpin_kv_blocks_ignored_total", "reason", help, index.ignored());
        let help = "Events that decoders left out, by reason.";
        let skips = self.kv_hub.skips();
        each(text, "rankpin_kv_events_skipped_total", "reason", help, skips.iter());
        text.family("rankpin_kv_resident_blocks", "gauge", "Blocks the index knows of, by pool.");
        for (pool, resident, _) in state.kv_sizes() {
            text.sample("rankpin_kv_resident_blocks", &format!("pool=\"{pool}\""), resident);
        }
        text.family("rankpin_kv_index_bytes", "gauge", "Memory of the index, by pool.");
        for (pool, _, bytes) in state.kv_sizes() {
            text.sample("rankpin_kv_index_bytes", &format!("pool=\"{pool}\""), bytes);
        }
        let help = "What became of the load that placed prompts are booked with.";
        each(text, "rankpin_kv_bookings_total", "outcome", help, state.kv_bookings());
        let [booked, expected, marks] = state.kv_booked();
        text.single("rankpin_kv_booked", "gauge", "Requests whose load is booked.", booked);
        let help = "Prompts just sent somewhere, and expected to be cached there.";
        text.single("rankpin_kv_expected", "gauge", help, expected);
        let help = "Places in prompts by which those of both are recognised.";
        text.single("rankpin_kv_marks", "gauge", help, marks);
        let silent = state.kv_silent(self.clock.now());
        drop(state);
        text.single(
            "rankpin_kv_events_silent",
            "gauge",
            "Ranks that serve and say nothing of their cache.",
            silent,
        );
        let hub = &self.kv_hub;
        let connected = hub.connected.load(Ordering::Relaxed);
        text.single("rankpin_kv_connected", "gauge", "Ranks whose events are subscribed to.", connected);
        for (name, help, count) in [
            (
                "rankpin_kv_connections_total",
                "Subscriptions made, the first of a rank included.",
                &hub.connections,
            ),
            ("rankpin_kv_payload_bytes_total", "Bytes of batches taken from sockets.", &hub.bytes),
            (
                "rankpin_kv_bad_messages_total",
                "Messages that are none of an event stream.",
                &hub.bad_messages,
            ),
        ] {
            text.single(name, "counter", help, count.load(Ordering::Relaxed));
        }
    }
}

fn each(
    text: &mut Text,
    name: &str,
    label: &str,
    help: &str,
    counts: impl IntoIterator<Item = (&'static str, u64)>,
) {
    text.family(name, "counter", help);
    for (word, count) in counts {
        text.sample(name, &format!("{label}=\"{word}\""), count);
    }
}

fn places_by_events(pool: &PoolInfo) -> bool {
    pool.policy == Policy::KvAware
}

fn want(
    (worker, source_number): (&Worker, u64),
    index: usize,
    endpoint: &Endpoint,
    by_pool: bool,
) -> Option<Wanted> {
    let spec = worker.spec();
    let at = match &spec.kv_events {
        KvEvents::Off => return None,
        KvEvents::Auto if !by_pool => return None,
        KvEvents::Auto | KvEvents::Discover => None,
        KvEvents::At(at) => Some(at.clone()),
    };
    let authority = endpoint.spec.address.to_string();
    Some(Wanted {
        worker: spec.id.clone(),
        pool: spec.pool.clone(),
        since: worker.xds_since(),
        source_number,
        endpoint: index,
        engine: spec.engine,
        host: endpoint.resolved.map_or_else(|| endpoint.spec.address.host.clone(), |at| Host::Ip(at.ip())),
        dial: endpoint.resolved.map_or_else(|| authority.clone(), |address| address.to_string()),
        authority,
        first: endpoint.spec.dp_start,
        count: endpoint.spec.dp_size,
        at,
    })
}
