//! What leaves an Envoy: who is dialled, the rank on the wire, and what the client is told. Shares no ranking code with `routing`.

use crate::request::Request;
use crate::worker::Worker;
use crate::world::World;
use routing::contract::Topology;
use routing::header;

impl World {
    /// Who is behind an address, and which rank the header means there.
    pub(crate) fn check_wire(
        &mut self,
        request: &Request,
        address: &str,
        header: Option<&str>,
    ) -> Option<(usize, Option<u32>)> {
        let found = self.workers.iter().enumerate().find_map(|(n, worker)| {
            let endpoint = worker.endpoints.iter().find(|endpoint| endpoint.address == address)?;
            Some((n, worker.clone(), endpoint.clone()))
        });
        let Some((n, worker, endpoint)) = found else {
            self.violate("only declared addresses are dialled", address);
            return None;
        };
        if request.named.as_ref().is_some_and(|(id, _)| *id != worker.id) {
            let found = format!("{:?} named, {} dialled", request.named, worker.id);
            self.violate("a named target is served exactly or not at all", &found);
            return None;
        }
        let session = &self.sessions[request.session];
        let directory = &self.envoys[request.at.envoy].vms[request.at.vm].vm.directory;
        // A host the VM has not heard of yet gets no rank: its engine balances.
        let known = directory.as_ref().is_some_and(|directory| directory.dialled(address).is_some());
        // What this VM believes of the endpoint may be what was declared before, as long as it has not heard of the change.
        let told = self.envoys[request.at.envoy].vms[request.at.vm].topologies() == request.topologies;
        // Nor can it have, as long as its replica has not.
        let told = told && self.is_told_everywhere(&worker);
        let believed = directory.as_ref().and_then(|directory| {
            let here = directory.dialled(address).map(|(_, e)| (e.dp_start, e.dp_size));
            // Under cluster steering Envoy may know the new address of a worker before the VM does.
            here.or_else(|| directory.worker_by_id(&worker.id).map(|(_, w)| (w.dp_start, w.dp_size)))
        });
        let current = worker.hashed(&endpoint, session.rank_hash);
        let endpoint = endpoint.as_believed(believed);
        // A binding outlives a change of ranks that keeps its rank, so then only the range is checked.
        // Which session it is may not be known here: a conversation without a key whose name nobody has heard yet.
        let anonymous =
            session.chain.is_some() && session.id.is_none() || session.is_lost() || request.fetches;
        // By what they cache the service chooses ranks, not only workers.
        let exact =
            !worker.ranks_changed && told && (known || header.is_some()) && !anonymous && !self.is_kv();
        // Behind its list Envoy may dial an endpoint that does not serve the session's rank: it gets none.
        let here = endpoint.start..endpoint.start + endpoint.size;
        let hashes = session.id.is_some() && !request.is_keyless() && self.plan.sends_hashed_ranks();
        let hashed = hashes.then(|| worker.hashed(&endpoint, session.rank_hash)).flatten();
        let expected = hashed.filter(|rank| here.contains(rank));
        let named =
            request.named.as_ref().and_then(|(_, rank)| *rank).filter(|_| worker.takes_ranks(&endpoint));
        match worker.understand(&endpoint, header) {
            // Chosen before this VM heard of the change.
            Err(_) if !told && !endpoint.former.is_empty() => return Some((n, None)),
            Err(problem) => self.violate("no undeclared rank is on the wire", &problem),
            Ok(rank) if told && named.is_some() && rank != named => {
                let found = format!("{:?} named, got {header:?}", request.named);
                self.violate("a named rank is the one on the wire", &found);
            }
            // Its caller named it, now or when it was bound.
            Ok(rank) if rank.is_some() && (rank == named || session.has_named(&worker.id, rank)) => {
                return Some((n, rank));
            }
            // The service has heard of the change and named the rank.
            Ok(rank) if !endpoint.former.is_empty() && header.is_some() && rank == current => {
                return Some((n, rank));
            }
            Ok(rank) if exact && rank.filter(|_| header.is_some()) != expected => {
                let found = format!("{address}: expected {expected:?}, got {header:?}");
                self.violate("a session's rank is its own on each worker", &found);
            }
            Ok(rank) => return Some((n, rank)),
        }
        None
    }

    pub(crate) fn is_told_everywhere(&self, worker: &Worker) -> bool {
        let spec = worker.spec();
        !self.is_shared() || self.replicas().all(|service| service.declared.get(&worker.id) == Some(&spec))
    }

    /// What discovery has not told this Envoy must not be in its topology.
    pub(crate) fn check_dialable(&mut self, envoy: usize, topology: Option<&Topology>) {
        let discovered = &self.envoys[envoy].discovered;
        let Some(service) = self.replicas().find(|service| service.state.epoch() == discovered.epoch) else {
            return;
        };
        let told = !self.envoys[envoy].by_files;
        // A late answer tells of what was, and may tell of a worker that went.
        let told =
            told && topology.is_some_and(|one| *one == service.state.topology_for(&self.envoys[envoy].node));
        let (Some(topology), true) = (topology, told) else {
            return;
        };
        let unknown = topology.workers.iter().find(|worker| {
            let current = service.declared.contains_key(&worker.id);
            current && worker.endpoints.iter().any(|e| !discovered.clusters.values().any(|a| *a == e.address))
        });
        // A worker that moved is shown as it was, until discovery has told the new address.
        let moved = self.workers.iter().any(|w| w.endpoints.iter().any(|e| e.retired));
        if let (Some(worker), false) = (unknown, moved) {
            let found = format!("{} on {}", worker.id, self.envoys[envoy].node);
            self.violate("topology never outruns discovery", &found);
        }
    }

    /// The client learns who served after an accepting answer alone, and learns the truth.
    pub(crate) fn check_told(&mut self, request: &Request, name: &str, value: &str) {
        let landed = request.landed.as_ref().filter(|_| request.accepted);
        let worker = value.split(';').next();
        if name != header::SERVED || landed.is_none_or(|(id, _)| Some(id.as_str()) != worker) {
            self.violate("who served is told truly", &format!("{name}: {value}, {landed:?}"));
        }
        self.stats.told += 1;
    }
}
