//! Turns declared host names into addresses, at declaration and every half minute. Which answers matter is the state's to say.

use crate::service::Service;
use routing::id::WorkerId;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, timeout};

/// How often names are asked again.
const REFRESH: Duration = Duration::from_secs(30);
/// A name that takes longer counts as unanswered; what it stood for before stays.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Lookups under way at once: the system resolver holds a thread for each.
const LOOKUPS_MAX: usize = 16;

/// A declared host name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Its worker.
    pub worker: WorkerId,
    /// Its endpoint's place in the worker's list.
    pub endpoint: usize,
    /// The name.
    pub host: String,
    /// The port, kept as declared.
    pub port: u16,
    /// What it stands for so far.
    pub current: Option<SocketAddr>,
}

/// Resolves until the service stops: names that stand for nothing yet at each change of the workers, all of them regularly.
pub async fn run(service: Arc<Service>) {
    let mut members = service.members_changed();
    let mut refresh = tokio::time::interval(REFRESH);
    refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        members.borrow_and_update();
        tokio::select! {
            _ = refresh.tick() => resolve_all(&service, &service.names()).await,
            _ = members.changed() => resolve_all(&service, &unresolved(&service)).await,
        }
    }
}

fn unresolved(service: &Service) -> Vec<Name> {
    service.names().into_iter().filter(|name| name.current.is_none()).collect()
}

async fn resolve_all(service: &Service, names: &[Name]) {
    for batch in names.chunks(LOOKUPS_MAX) {
        let mut lookups = JoinSet::new();
        for name in batch {
            let name = name.clone();
            lookups.spawn(async move { (lookup(&name).await, name) });
        }
        while let Some(done) = lookups.join_next().await {
            if let Ok((Some(answer), name)) = done {
                settle(service, &name, answer);
            }
        }
    }
}

/// `None` when nobody answered: keep what is known. An empty answer is an answer.
async fn lookup(name: &Name) -> Option<Option<SocketAddr>> {
    let asked = tokio::net::lookup_host((name.host.as_str(), name.port));
    match timeout(LOOKUP_TIMEOUT, asked).await {
        Ok(Ok(found)) => Some(choose(name.current, found)),
        Ok(Err(error)) => {
            tracing::warn!(worker = %name.worker, host = %name.host, %error, "worker name does not resolve");
            None
        }
        Err(_late) => {
            tracing::warn!(worker = %name.worker, host = %name.host, "no answer from the resolver");
            None
        }
    }
}

/// The address in use while it is still listed, else the lowest, IPv4 first: a resolver that shuffles moves nobody.
fn choose(current: Option<SocketAddr>, found: impl Iterator<Item = SocketAddr>) -> Option<SocketAddr> {
    let found: Vec<_> = found.collect();
    let kept = current.filter(|address| found.contains(address));
    kept.or_else(|| found.into_iter().min())
}

fn settle(service: &Service, name: &Name, answer: Option<SocketAddr>) {
    if answer != name.current {
        tracing::info!(worker = %name.worker, host = %name.host, address = ?answer, "worker name resolved");
        service.resolved(name, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_stays_while_it_is_listed() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let found = [at("[::1]:1"), at("10.0.0.2:1"), at("10.0.0.1:1")];
        assert_eq!(choose(None, found.into_iter()), Some(at("10.0.0.1:1")));
        assert_eq!(choose(Some(at("10.0.0.2:1")), found.into_iter()), Some(at("10.0.0.2:1")));
        assert_eq!(choose(Some(at("10.9.9.9:1")), found.into_iter()), Some(at("10.0.0.1:1")));
        assert_eq!(choose(Some(at("10.0.0.2:1")), [].into_iter()), None);
    }
}
