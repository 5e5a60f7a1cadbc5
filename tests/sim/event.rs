//! Everything that can happen in the world, each at its time.

use crate::envoy::Discovered;
use crate::plan::Timed;
use crate::world::VmAt;
use routing::contract::{PageUpload, Report, RouteReply, RouteRequest, WatchQuery, WatchReply};
use routing::flow::{AnswerHead, PageChange, RouteFailure};
use routing::id::Epoch;
use state_service::declare::WorkerSpec;
use state_service::state::{SlotGauges, Ticket};

/// Something that happens at its time.
#[derive(Debug)]
pub(crate) enum Event {
    Turn {
        session: usize,
    },
    /// The body of a request that waits for it.
    BodyComes {
        request: u64,
    },
    Request {
        session: usize,
        envoy: usize,
        vm: usize,
    },
    ClientLeaves {
        request: u64,
    },
    RouteArrives {
        request: u64,
        call: u64,
        body: Box<RouteRequest>,
    },
    RouteAnswered {
        request: u64,
        call: u64,
        life: Option<u64>,
        answer: Result<Box<RouteReply>, RouteFailure>,
    },
    Answered {
        request: u64,
        dial: u32,
        head: AnswerHead,
    },
    Refused {
        request: u64,
        dial: u32,
    },
    StreamEnds {
        request: u64,
        broken: bool,
    },
    Tick(VmAt),
    ReportArrives {
        at: VmAt,
        call: u64,
        report: Box<Report>,
    },
    ReportAnswered {
        at: VmAt,
        call: u64,
        good: bool,
    },
    WatchArrives {
        at: VmAt,
        call: u64,
        query: WatchQuery,
    },
    WatchAnswered {
        at: VmAt,
        call: u64,
        reply: Option<Box<WatchReply>>,
    },
    WatchHeld {
        call: u64,
    },
    PagesArrive {
        at: VmAt,
        call: u64,
        upload: Box<PageUpload>,
    },
    PagesAnswered {
        at: VmAt,
        call: u64,
        good: bool,
    },
    HostsBack {
        envoy: usize,
        addresses: Vec<String>,
    },
    CheckBuried {
        envoy: usize,
        dead: Epoch,
    },
    DeclaredAgain {
        life: u64,
        spec: Box<WorkerSpec>,
    },
    MovesAgain {
        envoy: usize,
        moves: Vec<PageChange>,
    },
    XdsPoll {
        envoy: usize,
    },
    XdsArrives {
        envoy: usize,
        known: (Epoch, u64),
    },
    XdsAnswered {
        envoy: usize,
        discovered: Box<Discovered>,
    },
    Probe {
        worker: usize,
    },
    Expire,
    Fault(Timed),
    Heal {
        worker: usize,
    },
    DrainOver {
        worker: usize,
        life: u64,
    },
    Resume {
        worker: usize,
        life: u64,
    },
    CacheClears {
        worker: usize,
    },
    Scrape {
        worker: usize,
    },
    Scraped {
        worker: usize,
        endpoint: usize,
        slots: Vec<SlotGauges>,
    },
    WaitDue {
        life: u64,
        ticket: Ticket,
    },
    WaiterGone {
        life: u64,
        ticket: Ticket,
    },
    /// A final turn that was refused comes again.
    FinalAgain {
        session: usize,
        envoy: usize,
    },
    ServiceIsBack,
}
