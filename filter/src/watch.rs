//! The long poll: one watcher per Envoy, by lease among the VMs or as a singleton, writes what it learns into shared data.

use crate::roles::Plugin;
use crate::{host, store, vm};
use routing::contract::WatchReply;
use routing::header::shared;
use routing::time::Timestamp;
use routing::watch::{self, POLL_TIMEOUT};

/// Largest answer read, in bytes: 4,096 workers with 8 ranks stay well below it.
const REPLY_BYTES_MAX: usize = 16 << 20;
/// Pause after a failed poll, in milliseconds.
const PAUSE_MS: u64 = 200;

pub(crate) struct Watch {
    elected: bool,
    call: Option<u32>,
    not_before: Timestamp,
}

impl Watch {
    pub(crate) fn elected() -> Self {
        Self { elected: true, call: None, not_before: Timestamp(0) }
    }

    pub(crate) fn singleton() -> Self {
        Self { elected: false, ..Self::elected() }
    }

    /// Renews the lease and keeps one poll under way.
    pub(crate) fn tick(&mut self, plugin: &Plugin) {
        let now = host::now();
        // A clock that went back must not silence the watch.
        let paused = now < self.not_before && self.not_before.since(now).0 <= PAUSE_MS;
        if self.leads(now) && self.call.is_none() && !paused {
            self.poll(plugin, now);
        }
    }

    fn leads(&self, now: Timestamp) -> bool {
        if !self.elected {
            return true;
        }
        let Some(me) = vm::with(|shared| shared.vm.caller.vm) else { return false };
        let (current, cas) = match host::shared(shared::LEASE) {
            Some((bytes, cas)) => (Some(bytes), cas),
            None => (None, 0),
        };
        watch::claim(current.as_deref(), me, now)
            .is_some_and(|lease| host::set_shared(shared::LEASE, &lease, cas))
    }

    fn poll(&mut self, plugin: &Plugin, now: Timestamp) {
        let Some(node) = vm::with(|shared| shared.vm.caller.node.clone()) else { return };
        self.call = plugin.call("GET", &store::position().path(&node), None, POLL_TIMEOUT);
        if self.call.is_none() {
            self.not_before = Timestamp(now.0 + PAUSE_MS);
        }
    }

    pub(crate) fn answered(&mut self, plugin: &Plugin, token: u32, arrived: bool, body: usize) {
        if self.call != Some(token) {
            return;
        }
        self.call = None;
        let now = host::now();
        let good = arrived && host::call_status() == Some(200) && body <= REPLY_BYTES_MAX;
        let reply = good.then(|| serde_json::from_slice::<WatchReply>(&host::call_body(body)).ok()).flatten();
        let Some(reply) = reply else {
            self.not_before = Timestamp(now.0 + PAUSE_MS);
            return;
        };
        if self.leads(now) {
            apply(plugin, reply, now);
            self.poll(plugin, now);
        }
    }
}

fn apply(plugin: &Plugin, reply: WatchReply, now: Timestamp) {
    let known = store::fleet().unwrap_or_default();
    let applied = store::position().apply(reply, &known, now);
    let pages = (plugin.config.page_count, plugin.config.page_bytes);
    for change in &applied.pages {
        store::change_page(change, pages);
    }
    if let Some(topology) = &applied.topology {
        store::put_topology(topology);
    }
    if let Some(fleet) = &applied.fleet {
        store::put_fleet(fleet);
    }
    store::put_position(&applied.position);
    vm::with(|shared| {
        shared.publish(applied.position.gauge());
        shared.refresh();
        shared.publish_workers();
    });
}
