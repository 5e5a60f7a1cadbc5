//! What Envoys ask the service again and again: the long poll of the watch, and discovery.

use crate::envoy::Discovered;
use crate::faults::Fault;
use crate::plan::{OTHER_POOL, POOL};
use crate::service::Standing;
use crate::world::{Event, VmAt, World};
use routing::config::Steering;
use routing::contract::{WATCH_HOLD_MS_MAX, WatchQuery, WatchReply};
use routing::id::{Cursor, Epoch, PoolName};
use state_service::state::{Command, Reply, XdsResource, cluster_name};

/// A poll that waits for news.
#[derive(Debug)]
pub(crate) struct Poll {
    pub(crate) at: VmAt,
    pub(crate) call: u64,
    query: WatchQuery,
}

impl World {
    pub(crate) fn watch_arrives(&mut self, at: VmAt, call: u64, query: WatchQuery) {
        match self.service.standing {
            Standing::Silent => return,
            Standing::Refusing => return self.after(1, Event::WatchAnswered { at, call, reply: None }),
            Standing::Up => {}
        }
        let hold = query.wait_ms.min(WATCH_HOLD_MS_MAX);
        self.service.polls.push(Poll { at, call, query });
        let to = self.service.life.replica;
        self.after(hold, Event::WatchHeld { to, call });
        self.wake_polls();
    }

    pub(crate) fn watch_held(&mut self, call: u64) {
        let Some(at) = self.service.polls.iter().position(|poll| poll.call == call) else { return };
        let poll = self.service.polls.remove(at);
        let (epoch, cursor, salt) = (self.service.state.epoch(), Cursor(poll.query.after), self.rng.next());
        let nothing = WatchReply {
            epoch,
            cursor,
            salt,
            gap: false,
            topology: None,
            fleet: None,
            moves: Vec::new(),
            upload: false,
        };
        self.answer_poll(&poll, &nothing);
    }

    pub(crate) fn wake_polls(&mut self) {
        for poll in std::mem::take(&mut self.service.polls) {
            let (query, salt) = (poll.query.clone(), self.rng.next());
            let mut effects = Vec::new();
            let reply =
                self.service.state.apply(self.service_now(), Command::Watch { query, salt }, &mut effects);
            self.answer_held(&effects, false);
            match reply {
                Reply::Watch(Some(news)) => self.answer_poll(&poll, &news),
                _ => self.service.polls.push(poll),
            }
        }
    }

    fn answer_poll(&mut self, poll: &Poll, news: &WatchReply) {
        let lost = self.net().watch_lost;
        let (at, call) = (poll.at, poll.call);
        if self.rng.per_mille(lost) {
            self.fired.count(Fault::WatchReplyLost);
            return self.after(40, Event::WatchAnswered { at, call, reply: None });
        }
        for delay in self.reply_delays(Fault::WatchReplyTwice, Fault::WatchReplyLate) {
            self.after(delay, Event::WatchAnswered { at, call, reply: Some(Box::new(news.clone())) });
        }
    }

    pub(crate) fn xds_arrives(&mut self, envoy: usize, known: (Epoch, u64)) {
        if self.service.standing != Standing::Up {
            return;
        }
        let of_pool = |name: &str| XdsResource::Endpoint(PoolName::parse(name).unwrap());
        let resources = match self.plan.steering {
            Steering::Cluster => vec![XdsResource::Cluster],
            Steering::Endpoints if self.plan.extra.pools => vec![of_pool(POOL), of_pool(OTHER_POOL)],
            Steering::Endpoints => vec![of_pool(POOL)],
        };
        let node = self.envoys[envoy].node.clone();
        let version = if known.0 == self.service.state.epoch() { known.1 } else { 0 };
        let by_files = self.envoys[envoy].by_files;
        for resource in resources.into_iter().filter(|_| !by_files) {
            let returns = self.is_shared() && known.0 != Epoch(0) && known.0 != self.service.state.epoch();
            let node = node.clone();
            self.apply(match returns {
                true => Command::NodeReturned { node, resource },
                false => Command::NodeAck { node, resource, version },
            });
        }
        let state = &self.service.state;
        // An Envoy of another life keeps what it has.
        if state.is_gathering() && known.0 != Epoch(0) && known.0 != state.epoch() {
            return;
        }
        if version == state.xds_version() {
            return;
        }
        let clusters = state
            .workers()
            .flat_map(|worker| worker.endpoints().iter().enumerate().map(move |(n, e)| (worker.id(), n, e)))
            .filter_map(|(id, n, endpoint)| Some((cluster_name(id, n), endpoint.resolved?.to_string())))
            .collect();
        let discovered = Discovered { epoch: state.epoch(), version: state.xds_version(), clusters };
        let delay = self.rng.within(1, 6);
        self.after(delay, Event::XdsAnswered { envoy, discovered: Box::new(discovered) });
    }
}
