//! Fake engines: addresses, the ranks behind each, and how they answer at the moment. Shares no ranking code with `routing`.

use crate::plan::WorkerPlan;
use routing::contract::{Engine, RankNumbering};
use routing::hash::Phase;
use routing::id::WorkerId;
use state_service::declare::{self, WorkerSpec};

/// Label of workers that repel.
const TAINT: &str = "!spot";
/// What a request asks for that goes to them all the same.
pub(crate) const TOLERATES: &str = "spot";

/// How a worker answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Accepts,
    Answers(u16),
    /// With `Retry-After`.
    Busy(u16),
    Refuses,
    Hangs,
}

/// One address, and the ranks it was declared with. Stays in the list when the worker moves away: a late dial is refused.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: String,
    pub(crate) start: u32,
    pub(crate) size: u32,
    /// Ranks of the whole worker when this address was declared.
    pub(crate) of: (u32, u32),
    pub(crate) retired: bool,
    /// Ranks that were declared here before, by start and size.
    pub(crate) former: Vec<(u32, u32)>,
}

impl Endpoint {
    /// As somebody sees it who has heard of that declaration; as it is when nobody ever declared it so.
    pub(crate) fn as_believed(&self, declared: Option<(u32, u32)>) -> Self {
        match declared.filter(|one| self.former.contains(one)) {
            Some(of) => Self { start: of.0, size: of.1, of, ..self.clone() },
            None => self.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) mode: Mode,
    pub(crate) declared: bool,
    /// Joined while sessions were served, or will: nobody misses it before.
    pub(crate) newcomer: bool,
    pub(crate) ranks_changed: bool,
    /// It was declared with other ranks at the same address.
    pub(crate) regrown: bool,
    /// It has fewer ranks than it had.
    pub(crate) shrank: bool,
    /// It was removed for a while.
    pub(crate) removed: bool,
    pub(crate) endpoints: Vec<Endpoint>,
    /// Repels requests that do not ask for it.
    pub(crate) tainted: bool,
    /// It drains, as far as its operator knows.
    pub(crate) drains: bool,
    /// How full its cache is, in thousandths.
    pub(crate) kv_permille: u32,
    /// Nobody hears of its gauges.
    pub(crate) silent: bool,
    plan: WorkerPlan,
    number: usize,
    moves: usize,
}

impl Worker {
    pub(crate) fn new(number: usize, plan: WorkerPlan, tainted: bool) -> Self {
        let mut worker = Self {
            id: WorkerId::parse(&format!("w{number}")).unwrap(),
            mode: Mode::Accepts,
            declared: false,
            newcomer: false,
            ranks_changed: false,
            regrown: false,
            shrank: false,
            removed: false,
            endpoints: Vec::new(),
            tainted,
            drains: false,
            kv_permille: 100,
            silent: false,
            plan,
            number,
            moves: 0,
        };
        worker.settle();
        worker
    }

    fn settle(&mut self) {
        let of = (self.plan.start, self.plan.sizes.iter().sum());
        let mut start = self.plan.start;
        for (nth, size) in self.plan.sizes.clone().into_iter().enumerate() {
            let address = format!("10.{}.{}.{nth}:8000", self.moves, self.number);
            self.endpoints.push(Endpoint { address, start, size, of, retired: false, former: Vec::new() });
            start += size;
        }
    }

    /// The engine starts again at other addresses.
    pub(crate) fn move_away(&mut self) {
        self.endpoints.iter_mut().for_each(|endpoint| endpoint.retired = true);
        self.moves += 1;
        self.settle();
    }

    /// It starts again elsewhere with other ranks.
    pub(crate) fn change_ranks(&mut self) {
        self.ranks_changed = true;
        self.plan.start = if self.plan.start == 0 { 6 } else { 0 };
        if self.plan.engine != Engine::Trtllm && self.plan.numbering != RankNumbering::None {
            self.plan.sizes = if self.plan.sizes.len() > 1 { vec![3] } else { vec![2, 1] };
        }
        self.move_away();
    }

    /// The same engine at the same address with another number of ranks. False when it is not what it was planned as.
    pub(crate) fn regrow(&mut self, from: u32, to: u32) -> bool {
        let Some(endpoint) = self.endpoints.iter_mut().find(|e| !e.retired && self.plan.sizes == [from])
        else {
            return false;
        };
        endpoint.former.push((endpoint.start, endpoint.size));
        (endpoint.size, endpoint.of) = (to, (endpoint.start, to));
        self.plan.sizes = vec![to];
        self.regrown = true;
        self.shrank |= to < from;
        true
    }

    pub(crate) const fn pool(&self) -> &'static str {
        self.plan.pool
    }

    pub(crate) fn prefills(&self) -> bool {
        self.plan.phase == Phase::Prefill
    }

    /// Its label `zone`.
    pub(crate) const fn zone(&self) -> &'static str {
        if self.number.is_multiple_of(2) { "a" } else { "b" }
    }

    pub(crate) fn live_endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().filter(|endpoint| !endpoint.retired)
    }

    pub(crate) fn spec(&self) -> WorkerSpec {
        let endpoints: Vec<_> = self
            .live_endpoints()
            .map(|e| {
                serde_json::json!({
                    "address": e.address, "dp_start": e.start, "dp_size": e.size, "rank_numbering": self.plan.numbering,
                })
            })
            .collect();
        let mut labels = serde_json::json!({"zone": self.zone()});
        if self.tainted {
            labels[TAINT] = "yes".into();
        }
        let body = serde_json::json!({
            "pool": self.plan.pool, "engine": self.plan.engine, "phase": self.plan.phase, "labels": labels,
            "endpoints": endpoints,
        });
        declare::parse(body.to_string().as_bytes(), Some(self.id.as_str())).unwrap()
    }

    /// The global rank a header at this endpoint means; the error says what is wrong with it.
    pub(crate) fn understand(
        &self,
        endpoint: &Endpoint,
        header: Option<&str>,
    ) -> Result<Option<u32>, String> {
        let Some(text) = header else { return Ok(self.rank_without_header(endpoint)) };
        if endpoint.of.1 == 1
            || self.plan.numbering == RankNumbering::None
            || self.plan.engine == Engine::Trtllm
        {
            return Err(format!("{} takes no rank, got {text}", self.id));
        }
        let number: u32 = text.parse().map_err(|_| format!("rank {text:?} is no number"))?;
        let rank = if self.plan.numbering == RankNumbering::Local { number + endpoint.start } else { number };
        let declared = (endpoint.start..endpoint.start + endpoint.size).contains(&rank);
        if declared {
            Ok(Some(rank))
        } else {
            Err(format!("{} declares {}+{}, got {text}", endpoint.address, endpoint.start, endpoint.size))
        }
    }

    /// Whether a rank is ever named to it.
    pub(crate) fn takes_ranks(&self, endpoint: &Endpoint) -> bool {
        let silent = self.plan.numbering == RankNumbering::None || self.plan.engine == Engine::Trtllm;
        endpoint.of.1 > 1 && !silent
    }

    /// The engine balances its ranks itself, unless there is only one.
    fn rank_without_header(&self, endpoint: &Endpoint) -> Option<u32> {
        (endpoint.size == 1 && endpoint.of.1 > 1).then_some(endpoint.start)
    }

    /// The rank a session with this hash has here when nothing else was ever declared: affinity section 5.
    pub(crate) fn hashed(&self, endpoint: &Endpoint, hash: u64) -> Option<u32> {
        let (start, size) = endpoint.of;
        let headerless = self.plan.numbering == RankNumbering::None || self.plan.engine == Engine::Trtllm;
        (size > 1 && !headerless).then(|| start + u32::try_from(hash % u64::from(size)).unwrap())
    }
}
