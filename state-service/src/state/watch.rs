//! What an Envoy has not seen yet: topology, fleet, and the bounded log of moves and releases.
//!
//! Owns cursors and gaps. New bindings are not told: an Envoy that lacks one asks.

use super::State;
use super::command::XdsResource;
use super::limits::WATCH_MOVES_MAX;
use super::nodes::{Look, seen_by};
use routing::contract::{Move, Topology, WatchQuery, WatchReply};
use routing::id::Cursor;
use routing::time::Timestamp;
use std::collections::VecDeque;

/// Moves and releases in the order they happened; the oldest are forgotten.
#[derive(Debug, Default)]
pub(super) struct MoveLog {
    /// How many were forgotten: the cursor before the oldest one kept.
    forgotten: u64,
    kept: VecDeque<Move>,
}

/// What follows a cursor.
enum Following {
    Moves(Vec<Move>),
    Gap,
}

impl MoveLog {
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// After the newest move.
    pub(super) fn cursor(&self) -> Cursor {
        Cursor(self.forgotten + u64::try_from(self.kept.len()).unwrap_or(0))
    }

    pub(super) fn push(&mut self, moved: Move, max: usize) {
        self.kept.push_back(moved);
        while self.kept.len() > max {
            self.kept.pop_front();
            self.forgotten += 1;
        }
    }

    fn following(&self, after: u64) -> Following {
        if after > self.cursor().0 {
            return Following::Gap;
        }
        let skip = after.checked_sub(self.forgotten).and_then(|skip| usize::try_from(skip).ok());
        skip.map_or(Following::Gap, |skip| {
            Following::Moves(self.kept.iter().skip(skip).take(WATCH_MOVES_MAX).cloned().collect())
        })
    }
}

impl State {
    pub(super) fn watch(&mut self, query: &WatchQuery, salt: u64) -> Option<Box<WatchReply>> {
        let same_life = query.epoch == self.epoch.0;
        let upload = query.epoch != 0 && !same_life;
        if upload {
            self.settling.earlier_life();
        }
        let withheld = self.is_gathering() && self.is_of_another_life(query);
        let following = if same_life { self.moves.following(query.after) } else { Following::Gap };
        let differs = !same_life || query.topology != self.topology_version(&query.node);
        let topology = (differs && !withheld).then(|| self.topology_for(&query.node));
        let fleet = (!same_life || query.fleet != self.fleet.version).then(|| self.fleet.clone());
        let (gap, moves, cursor) = match following {
            Following::Gap => (true, Vec::new(), self.moves.cursor()),
            Following::Moves(moves) => {
                let told = u64::try_from(moves.len()).unwrap_or(0);
                (false, moves, Cursor(query.after + told))
            }
        };
        if !gap && topology.is_none() && fleet.is_none() && moves.is_empty() {
            return None;
        }
        self.counters.watch_gaps += u64::from(gap);
        Some(Box::new(WatchReply { epoch: self.epoch, cursor, salt, gap, topology, fleet, moves, upload }))
    }

    fn topology_version(&self, node: &str) -> u64 {
        self.topology.max(self.nodes.by_name(node).map_or(0, |node| node.view))
    }

    /// What one Envoy may use now; an empty or unknown node sees everything.
    #[must_use]
    pub fn topology_for(&self, node: &str) -> Topology {
        let version = self.topology_version(node);
        let node = self.nodes.by_name(node);
        let workers = self.workers.iter().filter_map(|worker| seen_by(node, worker)).collect();
        Topology { version, pools: self.pools_with_models(), workers }
    }

    pub(super) fn node_ack(&mut self, now: Timestamp, node: &str, resource: XdsResource, version: u64) {
        let ours = version <= self.xds;
        self.counters.acks_from_the_future += u64::from(!ours);
        let version = if ours { version } else { 0 };
        let before = self.looks_of(node);
        let evicted = &mut self.counters.nodes_evicted;
        if !self.nodes.ack(now, node, resource, version, &self.config.limits, evicted) {
            return;
        }
        if self.looks_of(node) != before {
            self.views += 1;
            let view = self.views;
            if let Some(node) = self.nodes.by_name_mut(node) {
                node.view = view;
            }
            self.news = true;
        }
    }

    /// Counts once: a node that goes on refusing what we serve has not got it.
    ///
    /// While workers are gathered it is served nothing and so acknowledges nothing: what it has is then all there is.
    pub(super) fn node_returned(&mut self, now: Timestamp, node: &str, resource: XdsResource) {
        self.settling.earlier_life();
        if self.is_gathering() {
            return;
        }
        let known = self.nodes.by_name(node).and_then(|node| node.acked_of(&resource));
        let version = known.unwrap_or(self.xds);
        self.node_ack(now, node, resource, version);
    }

    fn looks_of(&self, node: &str) -> Vec<Look> {
        match self.nodes.by_name(node) {
            Some(node) => node.looks(self.workers.iter()),
            None => vec![Look::Current; self.workers.len()],
        }
    }
}
