//! The replay's clock: lets requests come, engines work and reports go out, in the order of simulated time.
//!
//! A session's next request comes at its time in the trace, but not before the answer to the one before is written. Owns the queue of
//! what is to come; things of one time happen in the order in which they were foreseen.

use super::args::ReplayArgs;
use super::engine::{Engine, Speed, Work};
use super::error::ReplayError;
use super::figures::{Computed, Figures, Tally};
use super::service::{Placed, Question, REPORT_EVERY, Service};
use super::trace::{Node, Request, Session, Trace};
use crate::state::kv_event::KvEvent;
use routing::block::Chain;
use routing::policy::mix;
use routing::time::{Millis, Timestamp};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Tells engines' hashes from other uses of the seed.
const HASHES: u64 = 0x6861_7368;

/// Something that happens at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A session's next request comes.
    Comes { session: usize },
    /// A slot has computed the prompt it was at.
    Computed { slot: usize },
    /// The last byte of an answer is written.
    Ends { flight: usize },
    /// The filter reports.
    Report,
}

/// A request under way.
#[derive(Debug)]
struct Flight {
    session: usize,
    request: usize,
    placed: Placed,
    asked: Timestamp,
    work: Option<Work>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Driver<'a> {
    trace: &'a Trace,
    speed: f64,
    service: Service,
    engines: Vec<Engine>,
    now: Timestamp,
    /// By time, then by the order of their making.
    coming: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    made: u64,
    /// Next request of each session, counted from its first.
    next: Vec<usize>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    reporting: bool,
    tally: Tally,
    path: Vec<Node>,
    capacity: Option<usize>,
}

impl<'a> Driver<'a> {
    /// A fleet that is idle.
    ///
    /// # Errors
    /// The arguments make no fleet.
    pub(super) fn new(args: &ReplayArgs, trace: &'a Trace) -> Result<Self, ReplayError> {
        let capacity = args.cache_fraction.map(|fraction| capacity(fraction, trace.forest.len(), args.slots));
        let speed = Speed { prefill: args.prefill_rate, decode: args.decode_rate };
        let salt = mix(args.seed, HASHES);
        let engine = |slot: u32| Engine::new(mix(salt, slot.into()), capacity, speed);
        let engines: Vec<Engine> = (0..args.slots).map(engine).collect();
        let mut driver = Self {
            trace,
            speed: args.speed,
            service: Service::new(args)?,
            tally: Tally::new(engines.len()),
            engines,
            now: Timestamp(0),
            coming: BinaryHeap::new(),
            made: 0,
            next: vec![0; trace.sessions.len()],
            flights: Vec::new(),
            free: Vec::new(),
            reporting: false,
            path: Vec::new(),
            capacity,
        };
        (0..trace.sessions.len()).for_each(|session| driver.schedule(session));
        Ok(driver)
    }

    /// Replays everything.
    ///
    /// # Errors
    /// A request was placed nowhere.
    pub(super) fn run(mut self) -> Result<Figures, ReplayError> {
        let began = self.coming.peek().map_or(Timestamp(0), |Reverse((at, _, _))| *at);
        let mut over = began;
        while let Some(Reverse((at, _, event))) = self.coming.pop() {
            self.now = at;
            match event {
                Event::Comes { session } => self.comes(session)?,
                Event::Computed { slot } => self.computed(slot),
                Event::Ends { flight } => {
                    over = at;
                    self.ends(flight);
                }
                Event::Report => self.report(),
            }
        }
        let slot_capacity_blocks = self.capacity.map(|blocks| blocks as u64);
        let working_set_blocks = self.trace.forest.len() as u64;
        let simulated_s = over.since(began).0 as f64 / 1000.0;
        Ok(Figures { slot_capacity_blocks, working_set_blocks, simulated_s, ..self.tally.figures() })
    }

    fn at(&mut self, at: Timestamp, event: Event) {
        self.made += 1;
        self.coming.push(Reverse((at, self.made, event)));
    }

    fn after(&mut self, ms: u64, event: Event) {
        self.at(self.now + Millis(ms), event);
    }

    fn session(&self, session: usize) -> Option<&'a Session> {
        self.trace.sessions.get(session)
    }

    /// The request that a session makes next.
    fn next_request(&self, session: usize) -> Option<(usize, &'a Request)> {
        let of = self.session(session)?;
        let number = of.requests.start + self.next.get(session)?;
        let request = self.trace.requests.get(number)?;
        of.requests.contains(&number).then_some((number, request))
    }

    fn schedule(&mut self, session: usize) {
        if let Some((_, request)) = self.next_request(session) {
            let at = Timestamp((request.at as f64 / self.speed) as u64);
            self.at(at.max(self.now), Event::Comes { session });
        }
    }

    fn comes(&mut self, session: usize) -> Result<(), ReplayError> {
        let Some((number, request)) = self.next_request(session) else { return Ok(()) };
        let key = self.session(session).and_then(|session| session.key.as_deref());
        let prompt = self.service.wants_prompt(self.now, key).then(|| self.prompt(request));
        let placed = self.service.place(self.now, Question { number, key, prompt })?;
        if let Some(next) = self.next.get_mut(session) {
            *next += 1;
        }
        let slot = placed.slot;
        let flight = Flight { session, request: number, placed, asked: self.now, work: None };
        let flight = self.fly(flight);
        if let Some(engine) = self.engines.get_mut(slot) {
            engine.accept(Work::new(flight, request.leaf, request.tokens, request.output));
        }
        self.begin(slot);
        if !self.reporting {
            self.reporting = true;
            self.after(REPORT_EVERY.0, Event::Report);
        }
        Ok(())
    }

    fn prompt(&mut self, request: &Request) -> Chain {
        let forest = &self.trace.forest;
        forest.path(request.leaf, &mut self.path);
        let hashes = self.path.iter().map(|node| forest.hash(*node)).collect();
        Chain { hashes, block_size: forest.block_size(), tokens: request.tokens }
    }

    fn fly(&mut self, flight: Flight) -> usize {
        let at = self.free.pop().unwrap_or(self.flights.len());
        match self.flights.get_mut(at) {
            Some(place) => *place = Some(flight),
            None => self.flights.push(Some(flight)),
        }
        at
    }

    fn begin(&mut self, slot: usize) {
        let forest = &self.trace.forest;
        if let Some(ms) = self.engines.get_mut(slot).and_then(|engine| engine.begin(forest)) {
            self.after(ms, Event::Computed { slot });
        }
    }

    fn computed(&mut self, slot: usize) {
        let forest = &self.trace.forest;
        let Some((work, batch, ms)) = self.engines.get_mut(slot).and_then(|engine| engine.computed(forest))
        else {
            return;
        };
        for event in &batch.events {
            if let KvEvent::Removed { hashes, .. } = event {
                self.tally.evicted(hashes.len());
            }
        }
        if self.service.hears_events() && !batch.events.is_empty() {
            self.service.events(self.now, slot, batch);
        }
        if let Some(flight) = self.flights.get_mut(work.flight).and_then(Option::as_mut) {
            self.service.answered(self.now, &flight.placed);
            flight.work = Some(work);
            self.tally.computed(&Computed {
                slot,
                listed: self.trace.requests.get(flight.request).map_or(0, |request| request.listed),
                cached: work.cached as u64,
                tokens: work.tokens,
                block_size: forest.block_size(),
                promised: flight.placed.promised,
                took: self.now.since(flight.asked).0,
            });
        }
        self.after(ms, Event::Ends { flight: work.flight });
        self.begin(slot);
    }

    fn ends(&mut self, number: usize) {
        let Some(flight) = self.flights.get_mut(number).and_then(Option::take) else { return };
        self.free.push(number);
        self.service.ended(&flight.placed);
        if let (Some(work), Some(engine)) = (flight.work, self.engines.get_mut(flight.placed.slot)) {
            engine.ended(&self.trace.forest, work);
        }
        self.schedule(flight.session);
    }

    /// Reports go on while something is under way, and once after.
    fn report(&mut self) {
        self.service.tick(self.now);
        self.reporting = self.free.len() < self.flights.len();
        if self.reporting {
            self.after(REPORT_EVERY.0, Event::Report);
        }
    }
}

/// Blocks that one slot can cache.
fn capacity(fraction: f64, distinct: usize, slots: u32) -> usize {
    (fraction * distinct as f64 / f64::from(slots.max(1))).ceil() as usize
}
