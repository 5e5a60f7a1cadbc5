//! What one VM does for its whole Envoy, by lease among the VMs or as a singleton: the long poll, whose answers go to shared
//! data; the gauges; and the upload of cached bindings to a service that lost its memory.

use crate::roles::Plugin;
use crate::seats::Gauges;
use crate::{host, store, vm};
use routing::contract::{PAGES_PATH, WatchReply};
use routing::header::shared;
use routing::time::{Millis, Timestamp};
use routing::upload::Upload;
use routing::watch::{self, POLL_TIMEOUT};

/// Largest answer read, in bytes: 4,096 workers with 8 ranks stay well below it.
const REPLY_BYTES_MAX: usize = 16 << 20;
/// Pause after a failed poll, in milliseconds.
const PAUSE_MS: u64 = 200;
/// A batch of bindings that is not answered by then is sent again.
const UPLOAD_TIMEOUT: Millis = Millis(1500);

pub(crate) struct Watch {
    elected: bool,
    call: Option<u32>,
    not_before: Timestamp,
    gauges: Gauges,
    /// It led at its last tick.
    led: bool,
    upload: Option<Upload>,
    upload_call: Option<u32>,
    /// Counts answers that cannot be read and questions refused: who answers is no service of this contract.
    unread: Option<u32>,
}

impl Watch {
    pub(crate) fn elected() -> Self {
        Self {
            elected: true,
            call: None,
            not_before: Timestamp(0),
            gauges: Gauges::default(),
            led: false,
            upload: None,
            upload_call: None,
            unread: host::counter("rankpin.watch_unread"),
        }
    }

    pub(crate) fn singleton() -> Self {
        Self { elected: false, ..Self::elected() }
    }

    /// Renews the lease, shows the gauges, and keeps one poll and one batch of an upload under way.
    pub(crate) fn tick(&mut self, plugin: &Plugin) {
        let now = host::now();
        let leads = self.leads(now);
        let led = std::mem::replace(&mut self.led, leads);
        if !self.led {
            return;
        }
        if !led {
            self.gauges.take_over();
        }
        self.gauges.show();
        self.upload_on(plugin, now);
        // A clock that went back must not silence the watch.
        let paused = now < self.not_before && self.not_before.since(now).0 <= PAUSE_MS;
        if self.call.is_none() && !paused {
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
        vm::with(|shared| shared.note_service(&plugin.config.service_cluster, self.call.is_some()));
        if self.call.is_none() {
            self.not_before = Timestamp(now.0 + PAUSE_MS);
        }
    }

    pub(crate) fn answered(&mut self, plugin: &Plugin, token: u32, arrived: bool, body: usize) {
        if self.upload_call == Some(token) {
            self.uploaded(plugin);
            return;
        }
        if self.call != Some(token) {
            return;
        }
        self.call = None;
        let now = host::now();
        let good = arrived && host::call_status() == Some(200) && body <= REPLY_BYTES_MAX;
        let reply = good.then(|| serde_json::from_slice::<WatchReply>(&host::call_body(body)).ok()).flatten();
        let Some(reply) = reply else {
            self.not_before = Timestamp(now.0 + PAUSE_MS);
            let understood = !matches!(host::call_status(), Some(200 | 400..=499));
            if let Some(id) = self.unread.filter(|_| arrived && !understood) {
                host::increment(id, 1);
            }
            return;
        };
        if self.leads(now) {
            let wanted =
                reply.upload && self.upload.as_ref().is_none_or(|upload| upload.epoch != reply.epoch);
            if wanted {
                self.upload = Some(Upload::new(reply.epoch));
            }
            apply(plugin, reply, now);
            self.poll(plugin, now);
            self.upload_on(plugin, now);
        }
    }

    /// Sends the next batch of an upload, if there is one and none is on its way.
    fn upload_on(&mut self, plugin: &Plugin, now: Timestamp) {
        let (Some(upload), None) = (&mut self.upload, self.upload_call) else { return };
        let Some(caller) = vm::with(|shared| shared.vm.caller.clone()) else { return };
        let pages = plugin.config.page_count;
        let Some(batch) = upload.batch(&caller, pages, now, store::page_bytes) else { return };
        let body = serde_json::to_vec(&batch).unwrap_or_default();
        self.upload_call = plugin.call("POST", PAGES_PATH, Some(&body), UPLOAD_TIMEOUT);
        if self.upload_call.is_none() {
            upload.lost();
        }
    }

    fn uploaded(&mut self, plugin: &Plugin) {
        self.upload_call = None;
        let Some(upload) = &mut self.upload else { return };
        if matches!(host::call_status(), Some(200..=299)) {
            upload.acknowledged(plugin.config.page_count);
            self.upload_on(plugin, host::now());
        } else {
            // Again with the next tick.
            upload.lost();
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
