//! Everything that can happen in the world, each at its time.

use crate::envoy::Discovered;
use crate::plan::Timed;
use crate::replicas::Life;
use crate::replicas::link::{Answer, Ask, Failure};
use crate::replicas::model::Model;
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
        to: usize,
        request: u64,
        call: u64,
        body: Box<RouteRequest>,
    },
    RouteAnswered {
        request: u64,
        call: u64,
        life: Option<Life>,
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
        to: usize,
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
        to: usize,
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
        to: usize,
        call: u64,
    },
    PagesArrive {
        to: usize,
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
        life: Life,
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
        to: usize,
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
        life: Life,
    },
    Resume {
        worker: usize,
        life: Life,
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
        life: Life,
        ticket: Ticket,
    },
    WaiterGone {
        life: Life,
        ticket: Ticket,
    },
    /// A final turn that was refused comes again.
    FinalAgain {
        session: usize,
        envoy: usize,
    },
    StoreArrives {
        life: Life,
        call: u64,
        ask: Box<Ask>,
    },
    StoreAnswered {
        life: Life,
        call: u64,
        /// And the memory of the store that it comes from.
        answer: Result<(Box<Answer>, u64), Failure>,
    },
    FollowHeld {
        call: u64,
    },
    Reconnect {
        life: Life,
        waits: bool,
        pause: u64,
    },
    TellDue {
        life: Life,
        due: u64,
    },
    HearAgain {
        life: Life,
    },
    RenewDue {
        life: Life,
    },
    BeatDue {
        life: Life,
    },
    ReadyAnyway {
        life: Life,
    },
    ClaimPatience {
        life: Life,
        asker: (u64, u64),
        call: u64,
    },
    HealthDue {
        envoy: usize,
    },
    ShunsNobody {
        envoy: usize,
    },
    CutHeals {
        replica: usize,
    },
    StoreIsBack,
    /// The copy that was made then takes over.
    StoreCopyLeads {
        copy: Box<Model>,
    },
    /// A replica learns how a worker is declared now.
    DeclarationComes {
        replica: usize,
        worker: usize,
    },
    /// Of that one, unless it lives another life by now.
    ServiceIsBack {
        life: Life,
    },
}

impl Event {
    /// Too many to be told.
    pub(crate) const fn is_routine(&self) -> bool {
        matches!(
            self,
            Self::Tick(_)
                | Self::Expire
                | Self::HealthDue { .. }
                | Self::BeatDue { .. }
                | Self::RenewDue { .. }
                | Self::TellDue { .. }
        )
    }
}
