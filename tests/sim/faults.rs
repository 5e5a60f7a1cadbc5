//! What may go wrong, how often each kind did, and which kinds may cost a session its place.
//!
//! A fault counts as fired when it meets something: a lost message, a request that is aborted, a worker that refuses a dial.

use std::collections::{BTreeMap, BTreeSet};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    RouteLost,
    RouteReplyLost,
    RouteLate,
    ReportLost,
    ReportReplyLost,
    ReportTwice,
    ReportLate,
    WatchLost,
    WatchReplyLost,
    MovesToldAgain,
    XdsLost,
    VmDied,
    ServiceRestarted,
    ServiceRefused,
    WorkerRefused,
    WorkerHung,
    WorkerAnswered5xx,
    WorkerProbedDown,
    WorkerRemoved,
    WorkerMoved,
    WorkerRanksChanged,
    ClientLeftWhileDeciding,
    ClientLeftWhileWaiting,
    ClientLeftWhileStreaming,
    SessionEvicted,
    RouteReplyStray,
    ReportReplyTwice,
    ReportReplyLate,
    WatchReplyTwice,
    WatchReplyLate,
    EnvoyClockForward,
    EnvoyClockBack,
    ServiceClockLeapt,
    RanksGrew,
    RanksShrank,
    WorkerRestarted,
    WorkerJoined,
    TopologyOutran,
    WorkerBusy,
    Spilled,
    ExactTargetMissed,
    VmBuried,
    UploadLost,
    PagesUploaded,
    ServiceLostItsFile,
    TargetNamed,
    HostsVanished,
    Waited,
    WaitEnded,
    WaitedInVain,
    WaiterLeft,
    WaitCut,
    WorkerDrained,
    DrainOver,
    SlotOverloaded,
    OverloadRefused,
    GaugesLate,
    GaugesStopped,
    TargetExcluded,
    DemandsUnmet,
    DryRun,
    LastTurn,
    LateRelease,
    ResponseIdLearned,
    ResponseIdKnown,
    ResponseIdUnknown,
    BodyMissing,
    PoolUnknown,
    PrefillChosen,
    PrefillFailed,
    PrefillElsewhere,
    PrefillLeft,
    AliasEvicted,
    PromptSent,
    PromptUnread,
    FirstByteTold,
    ReplicaDied,
    ReplicaJoined,
    ReplicaCutOff,
    ReplicaApart,
    SplitHealed,
    StoreDied,
    StoreForgot,
    StoreFlushed,
    StoreFailedOver,
    DeclaredLater,
    StoreAway,
    StoreCallLost,
    StoreCallLate,
    StoreReplyLost,
    EnvoyTurned,
    ReadyWithoutStore,
    AllRetold,
    JournalGap,
    LogGap,
    SnapshotRead,
    BindingHeard,
    BindingHeardAgain,
    BindingParked,
    Claimed,
    ClaimTimedOut,
    HeldByAnother,
    BoundByAnother,
    AnsweredAnew,
}

impl Fault {
    pub(crate) const ALL: [Self; 76] = [
        Self::RouteLost,
        Self::RouteReplyLost,
        Self::RouteLate,
        Self::ReportLost,
        Self::ReportReplyLost,
        Self::ReportTwice,
        Self::ReportLate,
        Self::WatchLost,
        Self::WatchReplyLost,
        Self::MovesToldAgain,
        Self::XdsLost,
        Self::VmDied,
        Self::ServiceRestarted,
        Self::ServiceRefused,
        Self::WorkerRefused,
        Self::WorkerHung,
        Self::WorkerAnswered5xx,
        Self::WorkerProbedDown,
        Self::WorkerRemoved,
        Self::WorkerMoved,
        Self::WorkerRanksChanged,
        Self::ClientLeftWhileDeciding,
        Self::ClientLeftWhileWaiting,
        Self::ClientLeftWhileStreaming,
        Self::SessionEvicted,
        Self::RouteReplyStray,
        Self::ReportReplyTwice,
        Self::ReportReplyLate,
        Self::WatchReplyTwice,
        Self::WatchReplyLate,
        Self::EnvoyClockForward,
        Self::EnvoyClockBack,
        Self::ServiceClockLeapt,
        Self::RanksGrew,
        Self::RanksShrank,
        Self::WorkerRestarted,
        Self::WorkerJoined,
        Self::TopologyOutran,
        Self::WorkerBusy,
        Self::Spilled,
        Self::ExactTargetMissed,
        Self::VmBuried,
        Self::UploadLost,
        Self::PagesUploaded,
        Self::ServiceLostItsFile,
        Self::TargetNamed,
        Self::HostsVanished,
        Self::Waited,
        Self::WaitEnded,
        Self::WaitedInVain,
        Self::WaiterLeft,
        Self::WaitCut,
        Self::WorkerDrained,
        Self::DrainOver,
        Self::SlotOverloaded,
        Self::OverloadRefused,
        Self::GaugesLate,
        Self::GaugesStopped,
        Self::TargetExcluded,
        Self::DemandsUnmet,
        Self::DryRun,
        Self::LastTurn,
        Self::LateRelease,
        Self::ResponseIdLearned,
        Self::ResponseIdKnown,
        Self::ResponseIdUnknown,
        Self::BodyMissing,
        Self::PoolUnknown,
        Self::PrefillChosen,
        Self::PrefillFailed,
        Self::PrefillElsewhere,
        Self::PrefillLeft,
        Self::AliasEvicted,
        Self::PromptSent,
        Self::PromptUnread,
        Self::FirstByteTold,
    ];

    /// Those of replicas and their store.
    pub(crate) const SHARED: [Self; 28] = [
        Self::ReplicaDied,
        Self::ReplicaJoined,
        Self::ReplicaCutOff,
        Self::ReplicaApart,
        Self::SplitHealed,
        Self::StoreDied,
        Self::StoreForgot,
        Self::StoreFlushed,
        Self::StoreFailedOver,
        Self::DeclaredLater,
        Self::StoreAway,
        Self::StoreCallLost,
        Self::StoreCallLate,
        Self::StoreReplyLost,
        Self::EnvoyTurned,
        Self::ReadyWithoutStore,
        Self::AllRetold,
        Self::JournalGap,
        Self::LogGap,
        Self::SnapshotRead,
        Self::BindingHeard,
        Self::BindingHeardAgain,
        Self::BindingParked,
        Self::Claimed,
        Self::ClaimTimedOut,
        Self::HeldByAnother,
        Self::BoundByAnother,
        Self::AnsweredAnew,
    ];
}

/// How often each kind fired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fired(pub(crate) BTreeMap<Fault, u64>);

impl Fired {
    pub(crate) fn count(&mut self, fault: Fault) {
        *self.0.entry(fault).or_default() += 1;
    }

    pub(crate) fn count_many(&mut self, fault: Fault, times: u64) {
        if times > 0 {
            *self.0.entry(fault).or_default() += times;
        }
    }

    pub(crate) fn of(&self, fault: Fault) -> u64 {
        self.0.get(&fault).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (fault, count) in &other.0 {
            *self.0.entry(*fault).or_default() += count;
        }
    }
}

/// Why a session may be served by more than one slot. The design allows it for these reasons and no others; a session
/// without any of them must be served by one (worker, rank) on every Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cost {
    /// The service was asked and gave no usable answer in time, or the breaker was open: placed by rendezvous.
    Alone,
    /// A first turn was not accepted (5xx, refused, client gone): its binding never came to be.
    RolledBack,
    /// Envoy tried again elsewhere.
    Retried,
    /// No worker could serve: the default route did.
    Passed,
    /// A VM died that had not told all it knew of this session.
    VmDied,
    /// The service lost its memory.
    Restarted,
    /// A worker was down, removed or declared otherwise.
    WorkerChanged,
    /// The service's clock leapt: what was idle is forgotten, and VMs are dead until they report.
    ServiceSlept,
    /// Its slot was dialled before Envoy knew the address.
    Outran,
    /// The table of sessions is smaller than the number of sessions: evicted, or never pinned.
    Evicted,
    /// One of its turns said that it was the last, and others came all the same.
    Ended,
    /// It hangs on a response id that nobody knew (any more).
    ChainBroken,
    /// The store did not say in time whose its first slot is.
    Unclaimed,
    /// A replica or the store failed before all of them knew its binding, or it was bound meanwhile.
    Unshared,
}

/// Whether Envoys may disagree even when all is quiet again. All else must heal by the last touch: a table that is smaller
/// than what is in use forgets each touch before the other side's comes.
pub(crate) fn may_last(costs: &BTreeSet<Cost>) -> bool {
    costs.contains(&Cost::Evicted)
}
