//! Several replicas of the service: which one is at hand, which one an Envoy asks, and a replica's side of the store.
//!
//! Mirrors `state-service/src/{replicas,service/sharing}.rs`: the shell's own steps, with every call of the store a message that may be
//! lost, late, or answered to nobody. The store itself is `model.rs`, of its own making.

pub(crate) mod agree;
pub(crate) mod claims;
pub(crate) mod connect;
pub(crate) mod hear;
pub(crate) mod link;
pub(crate) mod model;
pub(crate) mod splits;
pub(crate) mod tell;
pub(crate) mod turning;

use crate::event::Event;
use crate::service::{Service, Standing};
use crate::world::World;
use routing::id::Epoch;
use state_service::state::{Effect, SessionView};

/// One life of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Life {
    pub(crate) replica: usize,
    pub(crate) nth: u64,
}

impl World {
    pub(crate) fn add_replicas(&mut self) {
        self.others = (0..self.plan.replicas).map(|_| None).collect();
        for n in 1..self.plan.replicas {
            let epoch = Epoch(self.service.state.epoch().0 + 2 * u64::try_from(n).unwrap());
            let mut service = Service::new(epoch, self.state_config());
            service.life.replica = n;
            self.others[n] = Some(Box::new(service));
        }
    }

    pub(crate) const fn is_shared(&self) -> bool {
        self.plan.replicas > 1
    }

    /// From now on `service` is this one.
    pub(crate) fn turn_to(&mut self, replica: usize) {
        let at = self.service.life.replica;
        if at == replica {
            return;
        }
        let other = self.others[replica].take().unwrap();
        self.others[at] = Some(std::mem::replace(&mut self.service, other));
    }

    /// A replica, at hand or not.
    pub(crate) fn replica(&self, n: usize) -> &Service {
        if self.service.life.replica == n { &self.service } else { self.others[n].as_ref().unwrap() }
    }

    pub(crate) fn replicas(&self) -> impl Iterator<Item = &Service> {
        (0..self.plan.replicas).map(|n| self.replica(n))
    }

    /// Whether that life goes on.
    pub(crate) fn lives(&self, life: Life) -> bool {
        self.replica(life.replica).life == life
    }

    /// Does something with each replica at hand.
    pub(crate) fn at_each(&mut self, mut what: impl FnMut(&mut Self)) {
        let at = self.service.life.replica;
        for n in 0..self.plan.replicas {
            self.turn_to(n);
            what(self);
        }
        self.turn_to(at);
    }

    /// The same of those that are up.
    pub(crate) fn at_each_up(&mut self, mut what: impl FnMut(&mut Self)) {
        self.at_each(|world| {
            if world.service.standing == Standing::Up {
                what(world);
            }
        });
    }

    /// What each replica knows of a session.
    pub(crate) fn views(
        &self,
        id: routing::id::SessionId,
    ) -> impl Iterator<Item = (usize, Option<SessionView>)> {
        self.replicas()
            .map(move |service| (service.life.replica, service.state.session(self.now + service.ahead, id)))
    }

    /// What happens between replicas and their store.
    pub(crate) fn happen_between(&mut self, event: Event) {
        match event {
            Event::StoreArrives { life, call, ask } => self.store_arrives(life, call, *ask),
            Event::StoreAnswered { life, call, answer } => self.store_answered(life, call, answer),
            Event::FollowHeld { call } => self.follow_held(call),
            Event::Reconnect { life, waits, pause } => self.reconnect(life, waits, pause),
            Event::TellDue { life, due } => self.tell_due(life, due),
            Event::HearAgain { life } => self.hear_again(life),
            Event::RenewDue { life } => self.renew_due(life),
            Event::BeatDue { life } => self.beat_due(life),
            Event::ReadyAnyway { life } => self.ready_anyway(life),
            Event::ClaimPatience { life, asker, call } => self.claim_patience(life, asker, call),
            Event::HealthDue { envoy } => self.health_due(envoy),
            Event::ShunsNobody { envoy } => self.envoys[envoy].shuns = None,
            Event::CutHeals { replica } => self.cut_heals(replica),
            Event::StoreCopyLeads { copy } => self.store_copy_leads(*copy),
            Event::DeclarationComes { replica, worker } => self.declaration_comes(replica, worker),
            Event::StoreIsBack => self.store_is_back(),
            other => self.violate("every event happens", &format!("{other:?}")),
        }
    }

    /// What a state wants of its shell for the others' sake.
    pub(crate) fn share_effects(&mut self, effects: &[Effect]) {
        if !self.is_shared() {
            return;
        }
        for effect in effects {
            match effect {
                Effect::Recorded => self.wake_teller(),
                Effect::ClaimsOver(claims) => {
                    self.service.link.over.extend(claims.iter().copied());
                    self.wake_teller();
                }
                _ => {}
            }
        }
    }
}

impl Event {
    /// The replica that it happens to.
    pub(crate) const fn replica(&self) -> Option<usize> {
        match self {
            Self::RouteArrives { to, .. }
            | Self::ReportArrives { to, .. }
            | Self::WatchArrives { to, .. }
            | Self::WatchHeld { to, .. }
            | Self::PagesArrive { to, .. }
            | Self::XdsArrives { to, .. } => Some(*to),
            Self::DeclaredAgain { life, .. }
            | Self::DrainOver { life, .. }
            | Self::Resume { life, .. }
            | Self::WaitDue { life, .. }
            | Self::WaiterGone { life, .. }
            | Self::StoreAnswered { life, .. }
            | Self::Reconnect { life, .. }
            | Self::TellDue { life, .. }
            | Self::HearAgain { life }
            | Self::RenewDue { life }
            | Self::BeatDue { life }
            | Self::ClaimPatience { life, .. }
            | Self::ReadyAnyway { life }
            | Self::ServiceIsBack { life } => Some(life.replica),
            _ => None,
        }
    }
}
