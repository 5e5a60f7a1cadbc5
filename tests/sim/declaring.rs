//! Workers as the service is told of them: to one replica at once, to the others at once or a little later.

use crate::faults::{Cost, Fault};
use crate::service::Standing;
use crate::world::{Event, World};
use routing::id::WorkerId;
use state_service::declare::WorkerSpec;
use state_service::state::{Command, Reply};

impl World {
    pub(crate) fn declare(&mut self, worker: usize) {
        let spec = self.workers[worker].spec();
        self.workers[worker].declared = true;
        self.number_declaration(&spec.id);
        self.tell_declaration(worker);
    }

    /// To one replica at once, to the others at once or a little later.
    fn tell_declaration(&mut self, worker: usize) {
        let first = self.first_told();
        let staggers = self.plan.shared.staggers;
        for n in 0..self.plan.replicas {
            let replica = (first + n) % self.plan.replicas;
            if n > 0 && self.faults_on && self.rng.per_mille(staggers) {
                self.fired.count(Fault::DeclaredLater);
                let delay = self.rng.within(20, 1500);
                self.after(delay, Event::DeclarationComes { replica, worker });
            } else {
                self.declaration_comes(replica, worker);
            }
        }
        self.turn_to(first);
    }

    fn first_told(&mut self) -> usize {
        if self.is_shared() { self.rng.below(self.plan.replicas) } else { 0 }
    }

    pub(crate) fn declaration_comes(&mut self, replica: usize, worker: usize) {
        self.turn_to(replica);
        if self.is_shared() && self.workers[worker].shrank {
            let open = |session: &usize| self.sessions[*session].open > 0;
            let open: Vec<usize> = (0..self.sessions.len()).filter(open).collect();
            open.into_iter().for_each(|session| self.cost(session, Cost::WorkerChanged));
        }
        let (id, declared) = (self.workers[worker].id.clone(), self.workers[worker].declared);
        let up = self.service.standing == Standing::Up;
        if declared {
            let spec = self.workers[worker].spec();
            self.service.declared.insert(id, spec.clone());
            if up {
                self.put(spec);
            }
        } else if self.service.declared.remove(&id).is_some() && up {
            self.apply(Command::RemoveWorker { id });
        }
    }

    /// Declares a worker to the replica at hand.
    pub(crate) fn put(&mut self, spec: WorkerSpec) {
        let id = spec.id.clone();
        if let Reply::Refused(error) = self.apply(Command::PutWorker { spec }) {
            self.violate("a proper declaration is taken", &error.to_string());
        }
        if let Some(generation) = self.generations.get(&id).copied() {
            self.apply(Command::Generation { worker: id, generation });
        }
    }

    /// Whatever was declared so far is told to the replica at hand.
    pub(crate) fn tell_all_declared(&mut self) {
        if let Some(generation) = self.generations.values().max().copied().filter(|_| self.is_shared()) {
            self.apply(Command::DeclaredUpTo { generation });
        }
    }

    /// Where replicas share, each declaration of a worker has a number.
    fn number_declaration(&mut self, id: &WorkerId) {
        if self.is_shared() {
            let last = self.generations.values().max().copied().unwrap_or(0);
            self.generations.insert(id.clone(), last + 1);
        }
    }

    pub(crate) fn undeclare(&mut self, worker: usize) {
        self.workers[worker].declared = false;
        self.workers[worker].removed = true;
        self.workers[worker].drains = false;
        self.tell_declaration(worker);
    }
}
