//! What goes wrong between replicas and their store, and with either: as it begins and as it ends.

use crate::faults::{Cost, Fault};
use crate::replicas::model::Model;
use crate::service::Standing;
use crate::worker::Worker;
use crate::world::{Event, World};
use routing::time::Millis;

/// Longest that a loss is felt after its end: connections are tried for every 2 s, claims of the dead live for 5.
const FELT: u64 = 8000;

impl World {
    /// What is not known to everybody by now may be lost, or come late.
    pub(crate) fn shared_trouble(&mut self, lasts: u64) {
        self.troubled_until = self.troubled_until.max(self.now + Millis(lasts + FELT));
        for session in 0..self.sessions.len() {
            if self.sessions[session].begun && !self.is_agreed(session) {
                self.cost(session, Cost::Unshared);
            }
        }
    }

    /// A turn begins while something is wrong: where not all know its session it may go elsewhere.
    pub(crate) fn cost_of_split(&mut self, session: usize) {
        // Ranks that went are still given by a replica that was not told.
        let went = |worker: &Worker| worker.shrank && !self.is_told_everywhere(worker);
        if self.is_shared() && self.workers.iter().any(went) {
            self.cost(session, Cost::WorkerChanged);
        }
        let begun = self.sessions[session].begun;
        if begun && self.is_shared() && self.now < self.troubled_until && !self.is_agreed(session) {
            self.cost(session, Cost::Unshared);
        }
    }

    pub(crate) fn replica_dies(&mut self, replica: usize, silent: bool, down: u64) {
        self.turn_to(replica);
        if self.service.standing != Standing::Up {
            return;
        }
        self.fired.count(Fault::ReplicaDied);
        self.shared_trouble(down);
        self.stop_service(if silent { Standing::Silent } else { Standing::Refusing });
        let life = self.service.life;
        self.after(down, Event::ServiceIsBack { life });
    }

    /// Nothing gets through between one replica and the store.
    pub(crate) fn cut_replica(&mut self, replica: usize, silent: bool, lasts: u64) {
        self.fired.count(Fault::ReplicaCutOff);
        self.shared_trouble(lasts);
        self.turn_to(replica);
        self.service.link.cut = true;
        if !silent {
            self.break_links(replica);
        }
        self.after(lasts, Event::CutHeals { replica });
    }

    pub(crate) fn cut_heals(&mut self, replica: usize) {
        self.turn_to(replica);
        if std::mem::take(&mut self.service.link.cut) {
            self.fired.count(Fault::SplitHealed);
        }
    }

    pub(crate) fn store_dies(&mut self, silent: bool, forgets: bool, lasts: u64) {
        if self.store_standing != Standing::Up {
            return;
        }
        self.fired.count(Fault::StoreDied);
        self.shared_trouble(lasts);
        self.store_standing = if silent { Standing::Silent } else { Standing::Refusing };
        self.followers.clear();
        if forgets {
            self.fired.count(Fault::StoreForgot);
            self.store.forget();
        }
        if !silent {
            (0..self.plan.replicas).for_each(|replica| self.break_links(replica));
        }
        self.after(lasts, Event::StoreIsBack);
    }

    /// Flushed under those that are connected.
    pub(crate) fn store_is_flushed(&mut self) {
        self.fired.count(Fault::StoreFlushed);
        self.shared_trouble(2000);
        self.store.forget();
        self.wake_followers();
    }

    /// What is written from now on is not in the copy that will lead.
    pub(crate) fn store_fails_over(&mut self, lag: u64) {
        let copy = Box::new(self.store.clone());
        self.after(lag, Event::StoreCopyLeads { copy });
    }

    pub(crate) fn store_copy_leads(&mut self, copy: Model) {
        if copy.memory != self.store.memory || self.store_standing != Standing::Up {
            return;
        }
        self.fired.count(Fault::StoreFailedOver);
        self.store = copy;
        self.followers.clear();
        (0..self.plan.replicas).for_each(|replica| self.break_links(replica));
        self.shared_trouble(0);
    }

    pub(crate) const fn store_is_back(&mut self) {
        self.store_standing = Standing::Up;
    }

    /// Faults are over.
    pub(crate) fn heal_shared(&mut self) {
        self.store_is_back();
        self.envoys.iter_mut().for_each(|envoy| envoy.shuns = None);
        for replica in 0..self.plan.replicas {
            self.cut_heals(replica);
        }
        self.wake_followers();
    }
}
