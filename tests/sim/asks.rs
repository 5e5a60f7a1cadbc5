//! What requests say of themselves beside their key: the pool, demands on the worker, the last turn, a dry run; and what must
//! come of each.

use crate::faults::{Cost, Fault};
use crate::plan::POOL;
use crate::request::Request;
use crate::worker::{TOLERATES, Worker};
use crate::world::World;
use routing::contract::WorkerState;
use routing::flow::{Counter, PageChange};
use routing::header;

/// What a request demands of its worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    zone: Option<&'static str>,
    /// The only addresses that may serve.
    addresses: Vec<String>,
    /// Workers that repel others take it, and no others.
    spot: bool,
    /// Something it would like.
    prefers: bool,
}

impl Demand {
    /// Whether it may be turned away for what it asks.
    pub(crate) fn excludes(&self) -> bool {
        self.zone.is_some() || self.spot || !self.addresses.is_empty()
    }

    /// What it says of labels and addresses goes for both halves.
    pub(crate) fn allows_prefill(&self, worker: &Worker, address: &str) -> bool {
        self.allows(worker, address)
    }

    fn allows(&self, worker: &Worker, address: &str) -> bool {
        let listed = |address: &str| self.addresses.iter().any(|one| one == address);
        // A worker that moved is dialled where it was, until its Envoy has heard of it; the list may be newer, or older.
        let moved = || {
            worker.endpoints.iter().any(|e| e.retired) && worker.endpoints.iter().any(|e| listed(&e.address))
        };
        self.zone.is_none_or(|zone| zone == worker.zone())
            && (!self.spot || worker.tainted)
            && (self.addresses.is_empty() || listed(address) || moved())
    }
}

impl World {
    /// Whatever this request has to say, drawn by the plan's chances.
    pub(crate) fn ask(&mut self, request: &mut Request) {
        self.name_pool(request);
        if self.in_finals {
            return;
        }
        let (demands, finals) = (self.plan.extra.demands, self.plan.extra.finals);
        if demands > 0 && request.named.is_none() && self.rng.per_mille(demands) {
            self.demand(request);
        }
        if finals > 0 && self.rng.per_mille(finals) {
            request.headers.insert(header::FINAL_DEFAULT[0].to_owned(), "true".to_owned());
        }
    }

    fn name_pool(&mut self, request: &mut Request) {
        if !self.plan.extra.pools {
            return;
        }
        let lost = !self.in_finals && self.rng.per_mille(20);
        let asked = if lost { "nobodys-pool" } else { self.sessions[request.session].asks_for };
        request.lost = lost;
        request.headers.insert(crate::plan::POOL_HEADER.to_owned(), asked.to_owned());
        if lost {
            self.fired.count(Fault::PoolUnknown);
        }
    }

    fn demand(&mut self, request: &mut Request) {
        let pool = self.sessions[request.session].pool;
        let zone = if self.rng.per_mille(500) { "a" } else { "b" };
        let mut demand = Demand::default();
        let say = |request: &mut Request, name: &str, value: &str| {
            request.headers.insert(name.to_owned(), value.to_owned());
        };
        match self.rng.below(5) {
            0 => {
                demand.zone = Some(zone);
                say(request, header::REQUIRE, &format!("zone={zone}"));
            }
            1 => {
                demand.addresses = self.some_addresses(pool);
                say(request, header::SUBSET, &demand.addresses.join(", "));
            }
            2 => {
                demand.prefers = true;
                say(request, header::PREFER, &format!("zone={zone}"));
            }
            3 if self.plan.extra.tainted.is_some() && pool == POOL && !self.plan.extra.split => {
                demand.spot = true;
                say(request, header::REQUIRE, TOLERATES);
                self.sessions[request.session].tolerated = true;
            }
            _ => {
                request.dry = true;
                say(request, header::DRY_RUN, "1");
                return;
            }
        }
        request.demand = Some(demand);
    }

    /// Those of all workers of a pool but one; a prefill worker is never the one.
    fn some_addresses(&mut self, pool: &str) -> Vec<String> {
        let without = self.rng.below(self.plan.plain_workers);
        let all = self.workers.iter().enumerate();
        let kept = all.filter(|(n, worker)| worker.pool() == pool && *n != without);
        kept.flat_map(|(_, worker)| worker.live_endpoints().map(|e| e.address.clone())).collect()
    }

    /// Where a placed request may be dialled: nowhere outside its pool, at no prefill worker, and at none that it excludes.
    pub(crate) fn check_targets(&mut self, request: &Request, addresses: &[String]) {
        let session = &self.sessions[request.session];
        let (pool, tolerated) =
            (session.pool, session.tolerated || request.named.is_some() || session.home.is_some());
        let mut found = None;
        for (nth, address) in addresses.iter().enumerate() {
            let Some(worker) = self.worker_at(address) else { continue };
            if worker.pool() != pool || worker.prefills() {
                found =
                    Some(("a request stays in its pool and half", format!("{} serves {pool}", worker.id)));
            }
            if request.demand.as_ref().is_some_and(|demand| !demand.allows(worker, address)) {
                let what =
                    format!("{address} of {}: {:?}, {:?}", worker.id, request.demand, request.decisions);
                found = Some(("an excluded slot is not used", what));
            }
            if worker.tainted
                && (nth > 0 && *address != addresses[0] || !tolerated)
                && !request.demand.as_ref().is_some_and(|d| d.spot)
            {
                let what = format!("{address} of {}, entry {nth}, {:?}", worker.id, request.decisions);
                found = Some(("who repels others is left alone", what));
            }
        }
        if let Some((invariant, found)) = found {
            self.violate(invariant, &found);
        }
        self.check_open(request, addresses);
    }

    /// What is spread over the pool, or hashed, goes to a worker that its VM knows to be open.
    fn check_open(&mut self, request: &Request, addresses: &[String]) {
        let spread = matches!(
            request.decisions[..],
            [Counter::SessionKeyMissing | Counter::AffinityOff | Counter::SessionHash | Counter::Spilled]
        );
        let directory = &self.envoys[request.at.envoy].vms[request.at.vm].vm.directory;
        let first = addresses.first().filter(|_| spread && request.routes == 0);
        let known = first.zip(directory.as_ref()).and_then(|(at, directory)| directory.dialled(at));
        let shut =
            known.filter(|(worker, _)| matches!(worker.state, WorkerState::Draining | WorkerState::Down));
        if let Some(id) = shut.map(|(worker, _)| worker.id.to_string()) {
            self.violate("newcomers go to open workers", &format!("{id}: {:?}", request.decisions));
        }
    }

    pub(crate) fn worker_at(&self, address: &str) -> Option<&Worker> {
        self.workers.iter().find(|worker| worker.endpoints.iter().any(|e| e.address == address))
    }

    /// A request answered by the filter itself is so for a reason that its client or its pool gave.
    pub(crate) fn check_refusal(&mut self, request: &Request) {
        let excluded = request.demand.as_ref().is_some_and(Demand::excludes);
        let direct = self.plan.policy == routing::contract::Policy::Direct;
        let mut wrong = None;
        match request.decisions[..] {
            [Counter::KeyTooLong] | [Counter::NoTopology] => {}
            [Counter::NamedRefused] if request.named.is_some() || direct => {}
            [Counter::NamedRefused] if excluded => self.fired.count(Fault::TargetExcluded),
            // All that do not repel it are away.
            [Counter::NamedRefused] if self.plan.extra.tainted.is_some() => {
                self.fired.count(Fault::DemandsUnmet)
            }
            [Counter::OverloadRefused] if self.plan.may_refuse() => self.fired.count(Fault::OverloadRefused),
            [Counter::ModelUnknown] if request.lost => {}
            [Counter::DryRun] if request.dry => self.fired.count(Fault::DryRun),
            _ => wrong = Some(format!("{:?}, {:?}", request.decisions, request.demand)),
        }
        if let Some(found) = wrong {
            self.violate("a local reply has its reason", &found);
        }
    }

    /// Its client said that this turn was the last, and the filter took it so.
    pub(crate) fn session_ended(&mut self, request: &Request) {
        self.fired.count(Fault::LastTurn);
        let session = request.session;
        let stays = self.has_moved_on(request);
        let state = &mut self.sessions[session];
        let goes_on = state.turns_left > 0 || state.open > 1;
        state.landings.clear();
        state.prefill_landings.clear();
        state.ended = !stays;
        if goes_on {
            self.cost(session, Cost::Ended);
        }
    }

    /// Which binding a last turn releases, of its own half.
    pub(crate) fn note_release(&self, request: &mut Request, change: &PageChange) {
        if let PageChange::Put(record) = change
            && record.certainty == routing::page::Certainty::Gone
            && self.sessions[request.session].id == Some(record.id)
        {
            request.released = Some(record.version);
        }
    }

    /// What ends is the binding that the last turn ran on. One that moved before this Envoy heard of it is another, and stays by
    /// design until it is idle: the service ignores a release of an older version.
    fn has_moved_on(&self, request: &Request) -> bool {
        use state_service::state::SessionState;
        let (Some(id), Some(released)) = (self.sessions[request.session].id, request.released) else {
            return false;
        };
        let mut views = self.views(id).filter_map(|(_, view)| view);
        views.any(|view| view.state == SessionState::Bound && view.version > released)
    }

    /// Once quiet: what its client ended is bound no more, unless a turn came after it.
    pub(crate) fn check_ended(&mut self) {
        use state_service::state::{SessionState, SessionView};
        let mut found = None;
        let sure = |session: &&crate::client::Session| session.ended && session.costs.is_empty();
        for session in self.sessions.iter().filter(sure) {
            let Some(id) = session.id else { continue };
            self.stats.ended += 1;
            let bound = |view: &SessionView| view.state == SessionState::Bound;
            if let Some(view) = self.views(id).filter_map(|(_, view)| view).find(bound) {
                found = Some(format!("{view:?}"));
            }
            let pinned = |envoy: &&crate::envoy::Envoy| {
                let record = envoy.shared.record(id);
                // Of an earlier generation it is asked about before it is used.
                record.is_some_and(|record| {
                    record.certainty == routing::page::Certainty::Bound
                        && envoy.vms.iter().any(|cell| cell.vm.generation == record.generation)
                })
            };
            if let Some(envoy) = self.envoys.iter().find(pinned) {
                found = Some(format!("{} pins {:?}", envoy.node, envoy.shared.record(id)));
            }
        }
        if let Some(found) = found {
            self.violate("a session that ended is bound no more", &found);
        }
    }
}
