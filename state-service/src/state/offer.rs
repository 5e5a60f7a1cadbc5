//! What a worker offers to a request's demands: models, labels, and the address that would serve.
//!
//! Owns how endpoints become an address to be judged. What is demanded, and what meets it, is in `routing::demand`.

use super::workers::{Endpoint, Worker};
use routing::contract::Removal;
use routing::demand::{Demands, Offer};
use routing::id::Rank;

/// Every reason for which a worker may not take a request that would get this rank there.
pub(super) fn refuses(demands: &Demands, worker: &Worker, rank: Option<Rank>) -> Vec<Removal> {
    // Nearly always so, and asked for each worker at each choice: nothing is demanded, and no label repels.
    if demands.is_empty() && worker.spec.labels.is_empty() {
        return Vec::new();
    }
    let address = address(demands, worker, rank);
    demands.refuses(offer(worker, address.as_deref()))
}

/// Whether what is placed there already may go on. What repels newcomers keeps its sessions.
pub(super) fn keeps(demands: &Demands, worker: &Worker, rank: Option<Rank>) -> bool {
    let address = address(demands, worker, rank);
    demands.is_empty() || demands.keeps(offer(worker, address.as_deref()))
}

fn offer<'a>(worker: &'a Worker, address: Option<&'a str>) -> Offer<'a> {
    Offer { models: &worker.spec.models, labels: &worker.spec.labels, address }
}

/// The address that would serve: of the rank's endpoint; without a rank any may, so one that is not allowed if there is one.
fn address(demands: &Demands, worker: &Worker, rank: Option<Rank>) -> Option<String> {
    if demands.addresses.is_empty() {
        return None;
    }
    let serves = |endpoint: &&Endpoint| {
        let (start, size) = (endpoint.spec.dp_start, endpoint.spec.dp_size);
        rank.is_none_or(|rank| rank.0 >= start && rank.0 - start < size)
    };
    let dialled = |endpoint: &Endpoint| endpoint.resolved.map(|at| at.to_string());
    let all: Vec<Option<String>> = worker.endpoints.iter().filter(serves).map(dialled).collect();
    let allowed = |at: &Option<String>| at.as_ref().is_some_and(|at| demands.addresses.contains(at));
    all.iter().find(|at| !allowed(at)).or_else(|| all.first()).cloned().flatten()
}
