//! One request: what is known of it, and what the flow may see. What becomes of it is in `deciding.rs`, `dial.rs` and `answer.rs`.

use crate::asks::Demand;
use crate::envoy::SharedData;
use crate::world::VmAt;
use routing::attempt::Attempt;
use routing::flow::{Counter, Head, RequestFlow};
use routing::header;
use routing::id::{SessionId, Version, WorkerId};
use routing::session::RequestView;
use std::collections::BTreeMap;

/// As the shipped `num_retries`.
const RETRIES: u32 = 2;

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Deciding,
    Waiting,
    Streaming,
}

/// A dial that may still be answered.
#[derive(Debug)]
pub(crate) struct Dial {
    pub(crate) attempt: Attempt,
    pub(crate) worker: usize,
    pub(crate) rank: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) session: usize,
    pub(crate) at: VmAt,
    pub(crate) phase: Phase,
    pub(crate) flow: RequestFlow,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) note: Option<String>,
    pub(crate) call: Option<u64>,
    pub(crate) paused: bool,
    /// An engine answered below 400.
    pub(crate) accepted: bool,
    /// Addresses left to dial, last first.
    pub(crate) targets: Vec<String>,
    pub(crate) tried: Vec<String>,
    pub(crate) retries_left: u32,
    pub(crate) dial: Option<Dial>,
    pub(crate) dials: u32,
    /// Counters of which each request gets one.
    pub(crate) decisions: Vec<Counter>,
    /// The target its caller named.
    pub(crate) named: Option<(WorkerId, Option<u32>)>,
    pub(crate) responded: bool,
    pub(crate) routes: u32,
    /// Topologies its VM had seen when it was placed.
    pub(crate) topologies: u64,
    /// Sent to a host or cluster that Envoy does not know yet.
    pub(crate) outran: bool,
    /// Its slot was busy or unreachable: served elsewhere this once.
    pub(crate) spilled: bool,
    pub(crate) placed: bool,
    pub(crate) landed: Option<(WorkerId, Option<u32>)>,
    pub(crate) demand: Option<Demand>,
    /// Only what would become of it is asked.
    pub(crate) dry: bool,
    /// It names a pool that is not there.
    pub(crate) lost: bool,
    /// What names the answer it hangs on.
    pub(crate) alias: Option<SessionId>,
    /// This Envoy knew whose answer that is when the request came.
    pub(crate) alias_known: bool,
    /// It asks for a stored answer.
    pub(crate) fetches: bool,
    pub(crate) body: Option<Vec<u8>>,
    /// The service places it without a session.
    pub(crate) loose: bool,
    /// Its body did not come in time.
    pub(crate) bodiless: bool,
    /// Who prefills it, and on which rank.
    pub(crate) prefill: Option<(usize, Option<u32>)>,
    /// That half may be anywhere this once.
    pub(crate) prefill_loose: bool,
    /// That half counts as load.
    pub(crate) prefilling: bool,
    /// The binding that it released as the last turn, by its version.
    pub(crate) released: Option<Version>,
}

impl Request {
    /// Nobody knows its session.
    pub(crate) fn is_keyless(&self) -> bool {
        match self.decisions[..] {
            [Counter::SessionKeyMissing] => true,
            [Counter::RoutedUnpinned] => self.loose,
            _ => false,
        }
    }

    pub(crate) fn new(id: u64, session: usize, at: VmAt) -> Self {
        Self {
            id,
            session,
            at,
            phase: Phase::Deciding,
            flow: RequestFlow::default(),
            headers: BTreeMap::from([(header::VLLM_RANK.to_owned(), "77".to_owned())]),
            note: None,
            call: None,
            paused: false,
            accepted: false,
            targets: Vec::new(),
            tried: Vec::new(),
            retries_left: RETRIES,
            dial: None,
            dials: 0,
            decisions: Vec::new(),
            named: None,
            responded: false,
            routes: 0,
            topologies: 0,
            outran: false,
            spilled: false,
            placed: false,
            landed: None,
            demand: None,
            dry: false,
            lost: false,
            alias: None,
            alias_known: false,
            fetches: false,
            body: None,
            loose: false,
            bodiless: false,
            prefill: None,
            prefill_loose: false,
            prefilling: false,
            released: None,
        }
    }
}

pub(crate) struct View<'a> {
    pub(crate) headers: &'a BTreeMap<String, String>,
    pub(crate) shared: &'a SharedData,
    pub(crate) blind: bool,
    pub(crate) body: bool,
}

impl RequestView for View<'_> {
    fn header(&self, name: &str) -> Option<Vec<u8>> {
        let own = self.headers.get(name).map(String::as_str);
        let text = own.or(match name {
            header::http::METHOD => Some("POST"),
            header::http::PATH => Some("/v1/chat/completions"),
            _ => None,
        });
        text.map(|text| text.as_bytes().to_vec())
    }
}

impl Head for View<'_> {
    fn page(&self, n: u32) -> Option<Vec<u8>> {
        self.shared.pages.get(n as usize).filter(|_| !self.blind).cloned()
    }

    fn next_in_turn(&self, n: u32) -> u64 {
        let turn = &self.shared.turns[n as usize];
        turn.set(turn.get() + 1);
        turn.get()
    }

    fn body_follows(&self) -> bool {
        self.body
    }
}
