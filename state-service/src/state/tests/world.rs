//! The language of the traces: `route a r1@A; commit a r1@A; fail b r2@B; worker w1 ranks=4..8; wait 30s; moves`.
//!
//! A request is `NUMBER@VM`; VM `A` when not said. The draw is always 0: of equals the first by id is chosen.

use crate::config::ServiceConfig;
use crate::declare;
use crate::state::{Binding, Command, Effect, Limits, Position, Reply, State, StateConfig, XdsResource};
use expect_test::Expect;
use routing::contract::*;
use routing::demand::{Demands, Label};
use routing::hash::{self, Phase, worker_hash};
use routing::id::*;
use routing::time::{Millis, Timestamp};
use std::collections::BTreeMap;

pub(super) struct World {
    pub(super) state: State,
    pub(super) now: Timestamp,
    replies: BTreeMap<String, RouteReply>,
    seqs: BTreeMap<String, u64>,
    cursor: u64,
    words: Words,
}

/// `key=value` words of the command being run.
type Words = BTreeMap<String, String>;

pub(super) fn check(script: &str, expected: &Expect) {
    let mut world = World::new(Limits::SERVICE);
    expected.assert_eq(&world.play(script));
}

pub(super) fn session(name: &str) -> SessionRef {
    let id = hash::session_id(b"", b"", "default", Phase::Aggregated, name.as_bytes());
    SessionRef { id, rank_hash: hash::rank_hash(name.as_bytes()) }
}

pub(super) fn pool() -> PoolName {
    PoolName::parse("default").unwrap()
}

pub(super) fn worker_id(name: &str) -> WorkerId {
    WorkerId::parse(name).unwrap()
}

pub(super) fn caller(vm: &str) -> Caller {
    Caller { node: "envoy".to_owned(), vm: Epoch(hash::rank_hash(vm.as_bytes()).0) }
}

pub(super) fn route_request(name: &str, request: u64, vm: &str) -> RouteRequest {
    RouteRequest {
        session: Some(session(name)),
        ..RouteRequest::new(caller(vm), RequestId(request), pool(), Millis(30))
    }
}

impl World {
    pub(super) fn new(limits: Limits) -> Self {
        Self::with(StateConfig { service: ServiceConfig::without_file(), limits })
    }

    pub(super) fn with(config: StateConfig) -> Self {
        Self {
            state: State::new(Epoch(7), config),
            now: Timestamp(1_000_000),
            replies: BTreeMap::new(),
            seqs: BTreeMap::new(),
            cursor: 0,
            words: Words::new(),
        }
    }

    /// A world whose pool `default` is set to something, beside a pool `other` that is not.
    pub(super) fn of(set: impl FnOnce(&mut PoolInfo)) -> Self {
        let mut service = ServiceConfig::without_file();
        set(&mut service.pools[0]);
        service.pools.push(PoolInfo::with_defaults(PoolName::parse("other").unwrap()));
        Self::with(StateConfig { service, limits: Limits::SERVICE })
    }

    pub(super) fn apply(&mut self, command: Command) -> Reply {
        self.state.apply(self.now, command, &mut Vec::new())
    }

    pub(super) fn effects(&mut self, command: Command) -> Vec<Effect> {
        let mut out = Vec::new();
        self.state.apply(self.now, command, &mut out);
        out
    }

    pub(super) fn route(&mut self, request: RouteRequest, draw: u64) -> RouteReply {
        match self.apply(Command::Route { request, prompt: None, draw }) {
            Reply::Route(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn report(&mut self, vm: &str, entries: Vec<Entry>, in_flight: Vec<InFlight>) {
        let seq = self.seqs.entry(vm.to_owned()).or_default();
        *seq += 1;
        let report = Report { caller: caller(vm), seq: *seq, in_flight, entries, upstream_role_missing: 0 };
        self.apply(Command::Report(report));
    }

    pub(super) fn play(&mut self, script: &str) -> String {
        let steps = script.split(';').map(str::trim).filter(|step| !step.is_empty());
        steps.map(|step| format!("{step} -> {}\n", self.step(step))).collect()
    }

    fn step(&mut self, step: &str) -> String {
        let (pairs, plain): (Vec<&str>, Vec<&str>) = step.split_whitespace().partition(|w| w.contains('='));
        self.words = pairs
            .iter()
            .filter_map(|w| w.split_once('='))
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect();
        match plain.as_slice() {
            ["worker", id] => self.put(id),
            ["remove", id] => said(self.apply(Command::RemoveWorker { id: worker_id(id) })),
            ["drain", id] => self.drain(id, None),
            ["drain", id, deadline] => self.drain(id, Some(millis(deadline))),
            ["resume", id] => said(self.apply(Command::ResumeWorker { id: worker_id(id) })),
            ["probe", id, findings] => self.probe(id, findings),
            ["slot", id, finding] => self.slot(id, finding),
            ["route", name, request] => self.ask(name, request),
            ["commit", name, request] => self.commit(name, request),
            ["fail", name, request] => self.fail(name, request),
            ["touch", name] => self.touch(name),
            ["alias", alias, name] => self.alias(alias, name),
            ["upload", name] => self.upload(name),
            ["apply", name] => self.apply_binding(name),
            ["number", id, generation] => said(self.apply(Command::Generation {
                worker: worker_id(id),
                generation: generation.parse().unwrap(),
            })),
            ["told", generation] => {
                said(self.apply(Command::DeclaredUpTo { generation: generation.parse().unwrap() }))
            }
            ["changes", after] => self.changes(after.parse().unwrap()),
            ["gone", vm] => self.gone(vm),
            ["earlier", all] => said(self.apply(Command::EarlierLife { all_told: *all == "all" })),
            ["release", name] => self.release(name),
            ["delete", name] => said(self.apply(Command::ReleaseSession { id: session(name).id })),
            ["report", vm] => self.in_flight(vm),
            ["wait", time] => self.wait(time),
            ["show", name] => self.show(name),
            ["moves"] => self.moves(),
            ["states"] => self.states(),
            ["returns", node, resource] => self.returns(node, resource),
            ["ack", node, resource, version] => self.ack(node, resource, version),
            ["sees", node] => self.sees(node),
            ["count", counter] => self.count(counter),
            _ => panic!("unknown step {step:?}"),
        }
    }

    pub(super) fn has_reply(&self, request: &str) -> bool {
        self.replies.contains_key(request)
    }

    fn word(&self, key: &str) -> Option<&str> {
        self.words.get(key).map(String::as_str)
    }

    fn put(&mut self, id: &str) -> String {
        let (start, end) = self.word("ranks").map_or((0, 1), |ranks| {
            let (start, end) = ranks.split_once("..").unwrap();
            (start.parse::<u32>().unwrap(), end.parse::<u32>().unwrap())
        });
        let address = self.word("at").map_or_else(|| format!("{id}.test:8000"), str::to_owned);
        let pool = self.word("pool").unwrap_or("default");
        let weight: u32 = self.word("weight").map_or(1, |w| w.parse().unwrap());
        let mut json = serde_json::json!({ "pool": pool, "weight": weight,
            "phase": self.word("phase").unwrap_or("aggregated"),
            "models": self.words_of("models"), "labels": labels(self.words_of("labels")),
            "endpoints": [{ "address": address, "dp_start": start, "dp_size": end - start }] });
        if let Some(limit) = self.word("limit") {
            json["in_flight_limit"] = limit.parse::<u32>().unwrap().into();
        }
        let spec = declare::parse(json.to_string().as_bytes(), Some(id)).unwrap();
        said(self.apply(Command::PutWorker { spec }))
    }

    /// `a,b,c` of a word; none when it is not said.
    fn words_of(&self, key: &str) -> Vec<&str> {
        self.word(key).map(|text| text.split(',').collect()).unwrap_or_default()
    }

    fn drain(&mut self, id: &str, deadline: Option<Millis>) -> String {
        said(self.apply(Command::DrainWorker { id: worker_id(id), deadline }))
    }

    fn probe(&mut self, id: &str, findings: &str) -> String {
        for finding in findings.chars() {
            self.apply(Command::Probe { worker: worker_id(id), endpoint: 0, healthy: finding == '+' });
        }
        self.state_of(id)
    }

    fn slot(&mut self, id: &str, finding: &str) -> String {
        let rank = self.word("rank").map(|r| Rank(r.parse().unwrap()));
        let target = Target { worker: worker_id(id), rank };
        let count = self.word("count").map_or(1, |c| c.parse().unwrap());
        let entry = match finding {
            "refused" => Entry::SlotFailed { target, failure: SlotFailure::Connection, count },
            "5xx" => Entry::SlotFailed { target, failure: SlotFailure::Status5xx, count },
            "answered" => Entry::SlotAnswered { target },
            _ => panic!("{finding}"),
        };
        self.report("A", vec![entry], Vec::new());
        self.state_of(id)
    }

    fn state_of(&self, id: &str) -> String {
        self.state.worker(&worker_id(id)).map_or("unknown".to_owned(), |w| format!("{:?}", w.state()))
    }

    fn ask(&mut self, name: &str, request: &str) -> String {
        let (number, vm) = request_of(request);
        let mut asked = route_request(name, number, vm);
        asked.session = (name != "-").then(|| session(name));
        if let Some(pool) = self.word("pool") {
            asked.pool = PoolName::parse(pool).unwrap();
        }
        asked.cached = self.word("cached").map(cached);
        asked.named = self.word("named").map(target);
        asked.alias = self.word("alias").map(|name| session(name).id);
        asked.demands = self.demands();
        asked.dry_run = self.word("dry").is_some();
        let prefill = self.word("prefill").map(str::to_owned);
        asked.prefill = prefill.as_deref().map(|text| Box::new(self.prefill(text)));
        if let Some(failed) = self.word("failed") {
            let entry = self.failure(name, failed);
            asked.unsent.push(entry);
        }
        let reply = self.route(asked, 0);
        let mut said = say(&reply);
        if let Some((half, (_, request))) = reply.prefill.as_ref().zip(prefill.as_deref().map(prefill_of)) {
            said = format!("{said} + {}", say(half));
            self.replies.insert(request.to_owned(), (**half).clone());
        }
        self.replies.insert(request.to_owned(), reply);
        said
    }

    /// `require=k:v,k prefer=… allow=ADDRESS,… model=M`.
    fn demands(&self) -> Demands {
        let list = |key| Label::parse_list(&self.word(key).unwrap_or("").replace(':', "=")).unwrap();
        Demands {
            addresses: self.words_of("allow").into_iter().map(str::to_owned).collect(),
            require: list("require"),
            prefer: list("prefer"),
            model: self.word("model").map(str::to_owned),
        }
    }

    /// `NAME,rNUMBER`, the target it names in `pnamed=`.
    fn prefill(&self, text: &str) -> PrefillAsk {
        let (name, request) = prefill_of(text);
        PrefillAsk {
            request: RequestId(request_of(request).0),
            session: (name != "-").then(|| session(name)),
            cached: None,
            named: self.word("pnamed").map(target),
            unsent: Vec::new(),
        }
    }

    /// An engine called an answer of the session so.
    fn alias(&mut self, alias: &str, name: &str) -> String {
        let entry = Entry::Alias { alias: session(alias).id, session: session(name), pool: pool() };
        self.tell("A", name, entry)
    }

    fn commit(&mut self, name: &str, request: &str) -> String {
        let (number, vm) = request_of(request);
        let reply = self.replies.get(request);
        let held = reply.and_then(|r| r.hold).filter(|_| self.word("alone").is_none());
        let target = self.word("on").map(target).or_else(|| reply.and_then(|r| r.target.clone())).unwrap();
        let version = self.word("alone").map(version).or_else(|| reply.map(|r| r.version)).unwrap();
        let entry = Entry::Committed {
            session: session(name),
            pool: pool(),
            request: RequestId(number),
            hold: held,
            target,
            version,
        };
        self.tell(vm, name, entry)
    }

    /// Reports one entry and tells which counters it moved and how the session stands.
    fn tell(&mut self, vm: &str, name: &str, entry: Entry) -> String {
        self.counted(name, |world| world.report(vm, vec![entry], Vec::new()))
    }

    fn counted(&mut self, name: &str, act: impl FnOnce(&mut Self)) -> String {
        let before: Vec<_> = self.state.counters().iter().collect();
        act(self);
        let quiet = ["reports", "moves_published", "uploads"];
        let after = self.state.counters().iter().zip(before);
        let moved: Vec<&str> =
            after.filter(|(a, b)| a != b && !quiet.contains(&a.0)).map(|(a, _)| a.0).collect();
        format!("{} [{}]", self.show(name), moved.join(" "))
    }

    fn failure(&self, name: &str, request: &str) -> Entry {
        let (number, _) = request_of(request);
        let hold = self.replies.get(request).and_then(|r| r.hold).filter(|_| self.word("hold").is_none());
        Entry::Failed { session: session(name), pool: pool(), request: RequestId(number), hold }
    }

    fn fail(&mut self, name: &str, request: &str) -> String {
        let entry = self.failure(name, request);
        self.tell(request_of(request).1, name, entry)
    }

    fn touch(&mut self, name: &str) -> String {
        let version = self.word("v").map(version).unwrap();
        let slot = self.word("on").map(kept);
        self.tell("A", name, Entry::Touched { session: session(name), pool: pool(), version, slot })
    }

    fn upload(&mut self, name: &str) -> String {
        let idle_ms = self.word("idle").map_or(Millis(0), millis);
        let (slot, version) = (kept(self.word("on").unwrap()), version(self.word("v").unwrap()));
        let bindings = vec![KeptBinding { session: session(name), slot, version, idle_ms }];
        let upload = PageUpload { caller: caller("A"), last: true, bindings };
        self.counted(name, |world| drop(world.apply(Command::Pages(upload))))
    }

    /// A binding of writer `by`; a release without `on`.
    fn apply_binding(&mut self, name: &str) -> String {
        let number = |word: Option<&str>, default| word.map_or(default, |text| text.parse().unwrap());
        let binding = Binding {
            session: session(name),
            version: version(self.word("v").unwrap()),
            target: self.word("on").map(target),
            expires_in_ms: self.word("left").map_or(Millis::from_secs(1800), millis),
            generation: number(self.word("gen"), 0),
        };
        let writer = number(self.word("by"), 4);
        let reply = self.apply(Command::Apply { writer, bindings: vec![binding] });
        let Reply::Applied(outcomes) = reply else { panic!("{reply:?}") };
        format!("{outcomes:?} {}", self.show(name))
    }

    /// What changed, but for what writer `not` wrote.
    fn changes(&self, after: u64) -> String {
        let not_of = self.word("not").map_or(0, |text| text.parse().unwrap());
        let changes = self.state.changes(self.now, Position(after), not_of, 100);
        let mut said: Vec<String> = changes.bindings.iter().map(say_binding).collect();
        said.push(format!("at {}{}", changes.position.0, if changes.gap { " gap" } else { "" }));
        said.join(", ")
    }

    /// Says that a VM is dead, as `by` tells it.
    fn gone(&mut self, vm: &str) -> String {
        let by = self.word("by").unwrap_or("A").to_owned();
        self.report(&by, vec![Entry::VmGone { vm: caller(vm).vm }], Vec::new());
        format!("{} {} held", self.loads(), self.state.sizes().holds)
    }

    fn release(&mut self, name: &str) -> String {
        let version = self.word("v").map(version).unwrap();
        self.tell("A", name, Entry::Released { session: session(name), pool: pool(), version })
    }

    fn in_flight(&mut self, vm: &str) -> String {
        let slots = self.words.iter().filter(|(key, _)| key.as_str() != "seq");
        let in_flight =
            slots.map(|(k, v)| InFlight { target: target(k), count: v.parse().unwrap() }).collect::<Vec<_>>();
        match self.word("seq") {
            Some(seq) => {
                let seq = seq.parse().unwrap();
                self.apply(Command::Report(Report {
                    caller: caller(vm),
                    seq,
                    in_flight,
                    entries: vec![],
                    upstream_role_missing: 0,
                }));
            }
            None => self.report(vm, Vec::new(), in_flight),
        }
        self.loads()
    }

    fn loads(&self) -> String {
        let load = |w: &crate::state::Worker| format!("{}={}+{}", w.id(), w.in_flight(), w.reserved());
        self.state.workers().map(load).collect::<Vec<_>>().join(" ")
    }

    /// VMs that the script calls alive report while time passes: `alive=A,B`.
    fn wait(&mut self, time: &str) -> String {
        let end = self.now + millis(time);
        let alive: Vec<String> = self.word("alive").unwrap_or("").split(',').map(str::to_owned).collect();
        while self.now < end {
            let step = end.since(self.now).0.min(10_000);
            self.now += Millis(step);
            for vm in alive.iter().filter(|vm| !vm.is_empty()) {
                self.report(vm, Vec::new(), Vec::new());
            }
            self.apply(Command::Expire);
        }
        let sizes = self.state.sizes();
        format!("{} sessions, {} held, {} vms", sizes.sessions, sizes.holds, sizes.vms)
    }

    fn show(&self, name: &str) -> String {
        self.state.session(self.now, session(name).id).map_or("none".to_owned(), |view| {
            let target = view.target.as_ref().map_or("-".to_owned(), say_target);
            format!("{:?} {target} {}", view.state, say_version(view.version))
        })
    }

    fn moves(&mut self) -> String {
        let fleet = self.state.fleet().version;
        let topology = self.state.topology_for("").version;
        let query = WatchQuery { epoch: 7, after: self.cursor, topology, fleet, ..WatchQuery::default() };
        let Reply::Watch(reply) = self.apply(Command::Watch { query, salt: 0 }) else { panic!() };
        let Some(reply) = reply else { return "nothing".to_owned() };
        self.cursor = reply.cursor.0;
        let gap = if reply.gap { "gap " } else { "" };
        let say = |m: &Move| {
            let target = m.target.as_ref().map_or("released".to_owned(), say_target);
            format!("{target} {}", say_version(m.version))
        };
        format!("{gap}{}", reply.moves.iter().map(say).collect::<Vec<_>>().join(", "))
    }

    fn states(&self) -> String {
        let say = |w: &WorkerStatus| format!("{}={:?}", w.id, w.state);
        self.state.fleet().workers.iter().map(say).collect::<Vec<_>>().join(" ")
    }

    fn ack(&mut self, node: &str, polled: &str, version: &str) -> String {
        let version = if version == "latest" { self.state.xds_version() } else { version.parse().unwrap() };
        let effects =
            self.effects(Command::NodeAck { node: node.to_owned(), resource: resource(polled), version });
        format!("{} {effects:?}", self.sees(node))
    }

    fn returns(&mut self, node: &str, polled: &str) -> String {
        self.apply(Command::NodeReturned { node: node.to_owned(), resource: resource(polled) });
        self.sees(node)
    }

    fn sees(&self, node: &str) -> String {
        let topology = self.state.topology_for(node);
        let say = |w: &WorkerInfo| {
            let ends = w.endpoints.iter().map(|e| format!("{}+{}", e.dp_start, e.dp_size));
            format!("{}({})", w.id, ends.collect::<Vec<_>>().join(","))
        };
        format!("[{}]", topology.workers.iter().map(say).collect::<Vec<_>>().join(" "))
    }

    fn count(&self, counter: &str) -> String {
        self.state.counters().iter().find(|(name, _)| *name == counter).unwrap().1.to_string()
    }
}

/// `k:v,k:v` as a declaration has it.
fn labels(pairs: Vec<&str>) -> BTreeMap<&str, &str> {
    pairs.into_iter().map(|pair| pair.split_once(':').unwrap_or((pair, "yes"))).collect()
}

/// `NAME,rNUMBER`.
fn prefill_of(text: &str) -> (&str, &str) {
    text.split_once(',').unwrap()
}

fn resource(text: &str) -> XdsResource {
    match text.split_once(':') {
        Some(("eds", pool)) => XdsResource::Endpoint(PoolName::parse(pool).unwrap()),
        _ => XdsResource::Cluster,
    }
}

fn request_of(text: &str) -> (u64, &str) {
    let (number, vm) = text.split_once('@').unwrap_or((text, "A"));
    (number.trim_start_matches('r').parse().unwrap(), vm)
}

fn millis(text: &str) -> Millis {
    match text.strip_suffix("ms") {
        Some(ms) => Millis(ms.parse().unwrap()),
        None => Millis::from_secs(text.trim_end_matches('s').parse().unwrap()),
    }
}

/// `w1` or `w1:3`.
fn target(text: &str) -> Target {
    let (worker, rank) = text.split_once(':').map_or((text, None), |(w, r)| (w, Some(r)));
    Target { worker: worker_id(worker), rank: rank.map(|r| Rank(r.parse().unwrap())) }
}

/// `w1` or `w1:3`, as a page has it.
fn kept(text: &str) -> KeptSlot {
    let target = target(text);
    KeptSlot { worker_hash: worker_hash(&target.worker), rank: target.rank }
}

/// `3` (ours) or `3/99` (another writer's).
fn version(text: &str) -> Version {
    let (seq, writer) = text.split_once('/').unwrap_or((text, "7"));
    Version { seq: seq.parse().unwrap(), writer: writer.parse().unwrap() }
}

/// `w1:3,5/99`.
pub(super) fn cached(text: &str) -> Cached {
    let (slot, v) = text.split_once(',').unwrap();
    let target = target(slot);
    Cached { worker_hash: worker_hash(&target.worker), rank: target.rank, version: version(v) }
}

fn say(reply: &RouteReply) -> String {
    let target = reply.target.as_ref().map_or("-".to_owned(), say_target);
    let outcome = format!("{:?}", reply.outcome).to_lowercase();
    format!("{outcome} {target} {} {}", say_version(reply.version), reply.reason)
}

fn say_target(target: &Target) -> String {
    target.rank.map_or_else(|| target.worker.to_string(), |rank| format!("{}:{rank}", target.worker))
}

fn say_version(version: Version) -> String {
    if version.writer == 7 || version == Version::default() {
        format!("v{}", version.seq)
    } else {
        format!("v{}/{}", version.seq, version.writer)
    }
}

fn said(reply: Reply) -> String {
    match reply {
        Reply::Done => "done".to_owned(),
        Reply::Refused(error) => format!("refused: {error}"),
        Reply::Declared(declared) => format!("{declared:?}"),
        other => format!("{other:?}"),
    }
}

/// Names a session by one letter, if it is one of those.
fn say_binding(binding: &Binding) -> String {
    let letter = ('a'..='z').find(|letter| session(&letter.to_string()) == binding.session).unwrap_or('?');
    let place = match &binding.target {
        Some(Target { worker, rank: Some(rank) }) => format!("{worker}:{rank}"),
        Some(Target { worker, rank: None }) => worker.to_string(),
        None => "released".to_owned(),
    };
    format!("{letter} {place} v{}", binding.version.seq)
}
