//! A small world around [`RequestFlow`]: four VMs on two Envoys, their pages, a script that plays clients, engines and
//! the service, and a trace of what the machine did. Every request brings hostile steering headers along, and none of them
//! may be left when it goes on.
#![allow(dead_code, reason = "each test program uses its own part of it")]

mod render;
mod replies;
mod setups;

use crate::common::{Headers, endpoint, id, small_fleet, worker};
use routing::attempt::Attempt;
use routing::config::{FilterConfig, NoTopology, Steering};
use routing::contract::{Fleet, Policy, RouteRequest, Topology, WorkerState, WorkerStatus};
use routing::directory::Directory;
use routing::flow::{
    AnswerHead, By, Effect, Ending, Env, EnvoyReason, Head, Next, PageChange, RequestFlow, RouteFailure,
};
use routing::hash::{self, Phase};
use routing::id::{Epoch, Rank, SessionId};
use routing::page;
use routing::session::{Key, RequestView};
use routing::time::Timestamp;
use routing::vm::Vm;
use routing::watch::StoredFleet;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

type Pages = BTreeMap<u32, Vec<u8>>;

/// What no request may carry past the filter.
const HOSTILE: [(&str, &str); 3] =
    [("x-data-parallel-rank", "99"), ("x-rankpin-cluster", "admin"), ("x-rankpin-endpoints", "6.6.6.6:66")];

pub(crate) struct World {
    pub(crate) config: FilterConfig,
    pub(crate) topology: Topology,
    pub(crate) vms: Vec<Vm>,
    states: BTreeMap<String, WorkerState>,
    /// Overloaded ranks; `None`: all of the worker's.
    overloaded: BTreeMap<String, Vec<Option<u32>>>,
    pages: [Pages; 2],
    turns: [RefCell<BTreeMap<u32, u64>>; 2],
    now: Timestamp,
    flows: BTreeMap<String, Running>,
    /// The last question to the service.
    pub(crate) question: Option<RouteRequest>,
}

struct Running {
    flow: RequestFlow,
    vm: usize,
    headers: Headers,
    note: Option<String>,
    /// Headers set on the answer.
    answered: Vec<String>,
}

struct Seen<'a> {
    headers: &'a Headers,
    pages: &'a Pages,
    turns: &'a RefCell<BTreeMap<u32, u64>>,
}

impl RequestView for Seen<'_> {
    fn header(&self, name: &str) -> Option<Vec<u8>> {
        self.headers.header(name).or_else(|| crate::common::chat(name))
    }
}

impl Head for Seen<'_> {
    fn page(&self, n: u32) -> Option<Vec<u8>> {
        self.pages.get(&n).cloned()
    }

    fn next_in_turn(&self, n: u32) -> u64 {
        let mut turns = self.turns.borrow_mut();
        let turn = turns.entry(n).or_insert(0);
        *turn += 1;
        *turn
    }

    fn body_follows(&self) -> bool {
        self.headers.text("x-test-body").is_some()
    }

    fn body_hidden(&self) -> bool {
        self.headers.text("x-test-hidden").is_some()
    }
}

impl World {
    /// `cluster` steering over [`small_fleet`], at `@1000`.
    pub(crate) fn new() -> Self {
        let mut world = Self {
            config: FilterConfig::parse(b"").unwrap(),
            topology: small_fleet(),
            vms: (0..4).map(|n| Vm::new("envoy", Epoch(101 + n), n)).collect(),
            states: BTreeMap::new(),
            overloaded: BTreeMap::new(),
            pages: [Pages::new(), Pages::new()],
            turns: [RefCell::default(), RefCell::default()],
            now: Timestamp(1000),
            flows: BTreeMap::new(),
            question: None,
        };
        world.publish();
        world
    }

    pub(crate) fn endpoints() -> Self {
        Self::with(|world| world.config.steering = Steering::Endpoints)
    }

    pub(crate) fn session_hash() -> Self {
        Self::with(|world| world.topology.pools[0].policy = Policy::SessionHash)
    }

    pub(crate) fn without_topology(behaviour: NoTopology) -> Self {
        let mut world = Self::with(|world| world.config.on_no_topology = behaviour);
        world.vms.iter_mut().for_each(|vm| vm.directory = None);
        world
    }

    pub(crate) fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut world = Self::new();
        change(&mut world);
        world.publish();
        world
    }

    /// Gives every VM a directory of the present topology and states.
    fn publish(&mut self) {
        let named: BTreeSet<&String> = self.states.keys().chain(self.overloaded.keys()).collect();
        let workers = named.into_iter().map(|name| self.status(name)).collect();
        let fleet = Fleet { version: 1, workers };
        let mut directory = Directory::new(&self.topology);
        directory.update(&fleet);
        self.vms.iter_mut().for_each(|vm| vm.directory = Some(directory.clone()));
    }

    fn status(&self, name: &str) -> WorkerStatus {
        let state = self.states.get(name).copied().unwrap_or(WorkerState::Ready);
        let overloaded = self.overloaded.get(name).cloned().unwrap_or_default();
        WorkerStatus {
            overloaded: overloaded.iter().flatten().map(|rank| Rank(*rank)).collect(),
            all_overloaded: overloaded.contains(&None),
            ..WorkerStatus::idle(id(name), state)
        }
    }

    /// Plays a script, steps parted by `;`, each `[REQUEST:] COMMAND ARGUMENTS` or `@MILLISECONDS`; one trace line a step.
    pub(crate) fn run(&mut self, script: &str) -> String {
        let mut trace = String::new();
        for step in script.split(';').map(str::trim).filter(|step| !step.is_empty()) {
            if let Some(told) = self.step(step) {
                trace.push_str(&format!("{step} -> {told}\n"));
            }
        }
        trace
    }

    fn step(&mut self, step: &str) -> Option<String> {
        if let Some(at) = step.strip_prefix('@') {
            self.now = Timestamp(at.parse().unwrap());
            return None;
        }
        let (name, command) = step.split_once(": ").unwrap_or(("a", step));
        let words: Vec<&str> = command.split_whitespace().collect();
        let (verb, rest) = words.split_first().unwrap();
        match *verb {
            "head" => Some(self.head(name, rest)),
            "route" => Some(self.route(name, rest)),
            "body" => Some(self.body(name, &rest.join(" "))),
            "missing" => {
                Some(self.drive(name, |flow, env, seen, out| Some(flow.body_missing(env, seen, out))))
            }
            "said" => Some(self.said(name, &rest.join(" "))),
            "answer" => Some(self.answer(name, rest)),
            "end" => Some(self.end(name, rest)),
            "try" => Some(self.attempt(name, rest)),
            "page" => Some(self.page(rest)),
            "tick" => Some(self.tick()),
            "report" => Some(self.report(rest.first().map_or(0, |vm| vm.parse().unwrap()))),
            "load" => Some(self.load(rest.first().copied()).to_string()),
            _ => {
                self.change(verb, rest);
                None
            }
        }
    }

    /// Steps that change the fleet.
    fn change(&mut self, verb: &str, rest: &[&str]) {
        match (verb, rest) {
            ("fleet", [name, state]) => {
                let state = serde_json::from_str(&format!("\"{state}\"")).unwrap();
                self.states.insert((*name).to_owned(), state);
            }
            ("ranks", [name, start, size]) => {
                let place = self.topology.workers.iter_mut().find(|w| w.id == id(name)).unwrap();
                let address = place.endpoints[0].address.clone();
                *place = worker(name, &[endpoint(&address, start.parse().unwrap(), size.parse().unwrap())]);
            }
            ("overload", [name]) => self.overloaded.entry((*name).to_owned()).or_default().push(None),
            ("overload", [name, rank]) => {
                let ranks = self.overloaded.entry((*name).to_owned()).or_default();
                ranks.push(Some(rank.parse().unwrap()));
            }
            ("clear", [name]) => self.overloaded.entry((*name).to_owned()).or_default().clear(),
            ("remove", [name]) => self.topology.workers.retain(|w| w.id != id(name)),
            ("remove-pool", []) => self.topology.pools.clear(),
            ("generation", [n]) => {
                let n = n.parse().unwrap();
                self.vms.iter_mut().for_each(|vm| vm.generation = n);
            }
            _ => panic!("no such step: {verb} {rest:?}"),
        }
        self.publish();
    }

    fn head(&mut self, name: &str, words: &[&str]) -> String {
        let mut headers = Headers::of(&HOSTILE);
        let mut vm = 0;
        for word in words {
            match word.split_once('=') {
                Some(("session", key)) => headers.set("x-session-id", Some(key)),
                Some(("vm", n)) => vm = n.parse().unwrap(),
                Some(("worker", id)) => headers.set("x-rankpin-worker", Some(id)),
                Some(("mark", value)) => headers.set("x-rankpin-spoofed", Some(value)),
                Some(("rank", n)) => headers.set("x-rankpin-rank", Some(n)),
                Some(("path", path)) => headers.set(":path", Some(path)),
                Some(("method", method)) => headers.set(":method", Some(method)),
                Some((name, value)) if name.starts_with("x-") || name.starts_with("content-") => {
                    headers.set(name, Some(value));
                }
                None if *word == "body" => headers.set("x-test-body", Some("yes")),
                None if *word == "hidden" => headers.set("x-test-hidden", Some("yes")),
                _ => panic!("no such argument: {word}"),
            }
        }
        let flow = RequestFlow::default();
        let running = self.flows.entry(name.to_owned()).or_insert(Running {
            flow,
            vm,
            headers: headers.clone(),
            note: None,
            answered: Vec::new(),
        });
        running.headers = headers;
        self.drive(name, |flow, env, seen, out| Some(flow.head(env, seen, out)))
    }

    fn route(&mut self, name: &str, words: &[&str]) -> String {
        let answer = match words {
            ["timeout"] => Err(RouteFailure::Timeout),
            ["failed"] => Err(RouteFailure::Failed),
            ["malformed"] => Err(RouteFailure::Malformed),
            words => Ok(replies::reply(words, |key| self.session(key))),
        };
        self.drive(name, |flow, env, seen, out| {
            flow.routed(env, seen, answer, out);
            None
        })
    }

    /// `body TEXT`: the next part of the body; a last `…` says that more comes.
    fn body(&mut self, name: &str, text: &str) -> String {
        let (text, end) = text.strip_suffix('…').map_or((text, true), |text| (text, false));
        self.drive(name, |flow, env, seen, out| Some(flow.body(env, seen, text.as_bytes(), end, out)))
    }

    /// A part of a body that a script cannot write.
    pub(crate) fn raw_body(&mut self, name: &str, bytes: &[u8], end: bool) -> String {
        self.drive(name, |flow, env, seen, out| Some(flow.body(env, seen, bytes, end, out)))
    }

    /// `said TEXT`: the next part of the answer's body, with `\\n` for the ends of lines; a last `…` says that more comes.
    fn said(&mut self, name: &str, text: &str) -> String {
        if !self.flows[name].flow.wants_response_body() {
            return "not looked at".to_owned();
        }
        let (text, end) = text.strip_suffix('…').map_or((text, true), |text| (text, false));
        let text = text.replace("\\n", "\n");
        self.drive(name, |flow, env, _, out| {
            flow.response_body(env, text.as_bytes(), end, out);
            None
        })
    }

    fn answer(&mut self, name: &str, words: &[&str]) -> String {
        let (by, status) = match words {
            ["envoy", status, details] => (By::Envoy(EnvoyReason::of_details(details.as_bytes())), status),
            ["envoy", status] => (By::Envoy(usual_reason(status)), status),
            [status, retry_after] => (By::Engine(Some(retry_after.as_bytes().to_vec())), status),
            [status] => (By::Engine(None), status),
            _ => panic!("answer [envoy] STATUS [DETAILS | RETRY_AFTER]"),
        };
        let head = AnswerHead { status: status.parse().unwrap(), by };
        let running = self.flows.get_mut(name).unwrap();
        // As the filter does: an answer nobody wants is not looked at.
        if !running.flow.wants_answer(&self.vms[running.vm], self.config.served_header) {
            return "not looked at".to_owned();
        }
        let told = self.drive(name, |flow, env, _, out| {
            flow.answered(env, &head, out);
            None
        });
        let headers = std::mem::take(&mut self.flows.get_mut(name).unwrap().answered);
        if headers.is_empty() { told } else { format!("{told} [{}]", headers.join(", ")) }
    }

    fn end(&mut self, name: &str, words: &[&str]) -> String {
        let ending = if words == ["broken"] { Ending::BrokenStream } else { Ending::Plain };
        let told = self.drive(name, |flow, env, _, out| {
            flow.ended(env.vm, env.now, ending, out);
            None
        });
        self.flows.remove(name);
        told
    }

    /// One attempt of the upstream role: `try WORKER [STATUS [RETRY_AFTER]]`; without a status the host gives no answer.
    fn attempt(&mut self, name: &str, words: &[&str]) -> String {
        let (host, status) = (words[0], words.get(1).map(|status| status.parse().unwrap()));
        let retry_after = words.get(2).map(|text| text.as_bytes());
        let known = self.topology.workers.iter().find(|w| w.id.as_str() == host);
        let address = known.map_or_else(|| host.to_owned(), |w| w.endpoints[0].address.clone());
        let running = &self.flows[name];
        let vm = &mut self.vms[running.vm];
        let mut attempt = Attempt::default();
        let start = attempt.begin(vm, self.now, running.note.as_deref(), &address);
        if let Some(refused) = start.refuse {
            return format!("refused {}", refused.status);
        }
        if let Some(status) = status {
            attempt.answered(vm, self.now, status, retry_after);
        }
        let rank = start.rank.map_or_else(|| "no rank".to_owned(), |rank| format!("rank {}", rank.value));
        start.count.map_or_else(|| rank.clone(), |count| format!("{rank}, #{}", count.word()))
    }

    fn drive(
        &mut self,
        name: &str,
        input: impl FnOnce(&mut RequestFlow, &mut Env<'_>, &Seen<'_>, &mut Vec<Effect>) -> Option<Next>,
    ) -> String {
        let running = self.flows.get_mut(name).unwrap_or_else(|| panic!("no request {name}"));
        let pages = &self.pages[running.vm / 2];
        let seen = Seen { headers: &running.headers.clone(), pages, turns: &self.turns[running.vm / 2] };
        let mut env = Env { config: &self.config, vm: &mut self.vms[running.vm], now: self.now };
        let mut out = Vec::new();
        let next = input(&mut running.flow, &mut env, &seen, &mut out);
        let mut told: Vec<String> = next.iter().map(|next| format!("{next:?}").to_lowercase()).collect();
        let mut goes_on = next == Some(Next::Continue) && !out.iter().any(ignored);
        for effect in &out {
            goes_on |= matches!(effect, Effect::Resume);
            told.extend(self.apply(name, effect));
        }
        if goes_on {
            told.push(self.steered(name));
        }
        if told.is_empty() { "nothing".to_owned() } else { told.join(", ") }
    }

    fn apply(&mut self, name: &str, effect: &Effect) -> Option<String> {
        let running = self.flows.get_mut(name).unwrap();
        match effect {
            Effect::SetHeader(header, value) => running.headers.set(header, Some(value)),
            Effect::RemoveHeader(header) => running.headers.set(header, None),
            Effect::Route { request, .. } => {
                self.question = Some((**request).clone());
                return render::effect(effect, &self.topology);
            }
            Effect::SetResponseHeader(header, value) => running.answered.push(format!("{header}: {value}")),
            Effect::Note(note) => running.note = Some(note.clone()),
            Effect::Page(change) => {
                let envoy = running.vm / 2;
                return Some(self.turn_page(envoy, change));
            }
            other => return render::effect(other, &self.topology),
        }
        None
    }

    /// Where the request goes now; no header of the client may have a say in it. (The shipped configs strip them before the
    /// filter; here they are left in, as if somebody's config did not.) A placed request leaves one header to others: a
    /// worker's cluster follows no endpoint list, and behind a pool's cluster each attempt sets or removes the rank.
    fn steered(&self, name: &str) -> String {
        let headers = &self.flows[name].headers;
        let placed = headers.text("x-rankpin-cluster").is_some();
        let not_ours = match self.config.steering {
            _ if !placed => None,
            Steering::Cluster => Some("x-rankpin-endpoints"),
            Steering::Endpoints => Some("x-data-parallel-rank"),
        };
        for (header, value) in HOSTILE {
            let survived = headers.text(header).as_deref() == Some(value);
            assert!(!survived || not_ours == Some(header), "the client's {header} survived");
        }
        let text = |header| headers.text(header).filter(|_| not_ours != Some(header));
        let cluster = text("x-rankpin-cluster").unwrap_or_else(|| "default".to_owned());
        let list = text("x-rankpin-endpoints").map(|list| format!(" [{list}]")).unwrap_or_default();
        let rank = text("x-data-parallel-rank").map(|rank| format!(" rank {rank}")).unwrap_or_default();
        let names = &self.config.prefill_headers;
        let prefill = headers.text(&names.host_port).map(|at| {
            let rank = headers.text(&names.rank).map_or_else(String::new, |rank| format!(" rank {rank}"));
            format!(", prefill at {at}{rank}")
        });
        format!("to {}{list}{rank}{}", cluster.trim_start_matches("rankpin-"), prefill.unwrap_or_default())
    }

    /// The session of `KEY`, `KEY@PHASE` or `KEY@POOL[/MODEL]`, or the alias of `resp:ID`.
    pub(crate) fn session(&self, key: &str) -> SessionId {
        let secret = &self.config.hash_secret;
        if let Some(response) = key.strip_prefix("resp:") {
            return hash::response_id(secret, b"", response.as_bytes());
        }
        let (key, at) = key.split_once('@').unwrap_or((key, ""));
        let (place, phase) = match at {
            "prefill" => ("chat", Phase::Prefill),
            "decode" => ("chat", Phase::Decode),
            "" => ("chat", Phase::Aggregated),
            place => (place, Phase::Aggregated),
        };
        Key::new(key.as_bytes()).unwrap().session_of(secret, b"", place, phase).id
    }

    /// Requests in flight, of all VMs: on all workers, or on one.
    fn load(&self, worker: Option<&str>) -> u64 {
        let hash = worker.map(|name| hash::worker_hash(&id(name)));
        let of = |vm: &Vm| hash.map_or_else(|| vm.loads.total(), |hash| vm.loads.of_worker(hash).into());
        self.vms.iter().map(of).sum()
    }

    /// A header of a request as it went on.
    pub(crate) fn header(&self, name: &str, header: &str) -> Option<String> {
        self.flows[name].headers.text(header)
    }

    pub(crate) fn note(&self, name: &str) -> Option<&str> {
        self.flows[name].note.as_deref()
    }

    /// Requests in flight on a worker, from the first VM.
    pub(crate) fn put_load(&mut self, worker: &str, count: usize) {
        let hash = routing::hash::worker_hash(&id(worker));
        (0..count).for_each(|_| self.vms[0].loads.add(hash, None));
    }

    /// The first VM finds a fleet in shared data, in which workers have so many requests.
    pub(crate) fn take_over(&mut self, version: u64, in_flight: &[(&str, u32)]) {
        let workers =
            in_flight.iter().map(|(name, count)| WorkerStatus { in_flight: *count, ..self.status(name) });
        let fleet = Fleet { version, workers: workers.collect() };
        let stored = StoredFleet { fleet, generation: self.vms[0].generation, salt: 0 };
        self.vms[0].take_over(self.now, None, Some(&stored));
    }

    /// Writes a record to the first Envoy's pages.
    pub(crate) fn put(&mut self, record: page::Record) {
        let n = page::page_of(record.id, self.config.page_count);
        let place = self.pages[0].entry(n).or_insert_with(page::empty);
        *place = page::with(place, &record, self.config.page_bytes).unwrap();
    }

    /// Loses a session's record from the first Envoy's pages, as a full page does.
    pub(crate) fn forget(&mut self, session: SessionId) {
        let n = page::page_of(session, self.config.page_count);
        self.pages[0].insert(n, page::empty());
    }

    /// `page KEY [ENVOY]`.
    fn page(&self, words: &[&str]) -> String {
        let session = self.session(words[0]);
        let pages = &self.pages[words.get(1).map_or(0, |n| n.parse().unwrap())];
        let bytes = pages.get(&page::page_of(session, self.config.page_count));
        let found = bytes.and_then(|bytes| page::find(bytes, session));
        found.map_or_else(|| "empty".to_owned(), |record| render::record(&record, &self.topology))
    }

    fn turn_page(&mut self, envoy: usize, change: &PageChange) -> String {
        let page = page::page_of(change.session(), self.config.page_count);
        let place = self.pages[envoy].entry(page).or_insert_with(page::empty);
        let written = change.apply(place, self.config.page_bytes);
        let told = render::change(change, &self.topology, written.is_some());
        *place = written.unwrap_or_else(|| place.clone());
        told
    }

    /// The first VM looks at what runs.
    fn tick(&mut self) -> String {
        let changes = self.vms[0].keep_running(self.now);
        let told: Vec<String> = changes.iter().map(|change| self.turn_page(0, change)).collect();
        if told.is_empty() { "nothing".to_owned() } else { told.join(", ") }
    }

    /// What a VM has to tell; it counts as told.
    fn report(&mut self, vm: usize) -> String {
        let vm = &mut self.vms[vm];
        vm.reports.lost();
        let report = vm.next_report(self.now);
        vm.reports.acknowledged();
        report.map_or_else(|| "nothing".to_owned(), |report| render::report(&report))
    }
}

/// What Envoy's own answers of a status mostly mean.
fn usual_reason(status: &str) -> EnvoyReason {
    match status {
        "503" => EnvoyReason::Unreached,
        "504" => EnvoyReason::Timeout,
        _ => EnvoyReason::Other,
    }
}

fn ignored(effect: &Effect) -> bool {
    matches!(effect, Effect::Count(routing::flow::Counter::Ignored(_)))
}
