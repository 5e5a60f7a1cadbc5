//! Mistakes that a world may have on purpose: `bugs.rs` sees that each is noticed.

/// A mistake built into the world on purpose, to see that an invariant notices it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Pages take every record, whatever its version.
    PagesIgnoreVersions,
    /// Each commit comes a second time with another slot.
    CommitsTwiceElsewhere,
    /// The rank of the first attempt stays on the next one.
    RankStaysOnRetry,
    /// The filter is not told when a client leaves.
    EndsAreLost,
    /// The watch drops the moves it is told.
    MovesAreDropped,
    /// The second VM finds nothing in the pages, so its pinned turns ask.
    SecondVmSeesNoPages,
    /// The watching VM does not tell the service who died.
    DeadVmsAreNotTold,
    /// A service that lost its memory never gets the pages it asks for.
    NoUploads,
    /// A new watching VM believes that nobody showed gauges before it.
    NewWatcherTrustsGauges,
    /// Envoy goes on although the upstream role answered in the host's place.
    RefusedAttemptsGoOn,
    /// Touches are lost on their way.
    TouchesAreLost,
    /// Touches do not say where the binding is.
    TouchesNameNoSlot,
    /// The rank that a caller names does not reach the worker.
    NamedRanksAreDropped,
    /// A turn that is served elsewhere this once is taken for its session's new place.
    SpillsMove,
    /// What was true before the ranks grew is believed for ever by one Envoy.
    TopologiesAreDropped,
    /// Requests that wait for their slot are answered only when their time is up.
    WaitersAreNotWoken,
    /// What a request counts on its prefill worker stays when its client leaves before the service answered.
    PrefillLeaksOnLeaving,
    /// A release ends whatever binding there is by then.
    ReleasesAreNotFenced,
    /// The service is not told what a request demands.
    DemandsAreDropped,
    /// An operator's drain does not arrive.
    DrainsAreForgotten,
    /// A response id is told of another session.
    AliasesAreMixedUp,
    /// The service does not hear that requests are over.
    EndingsAreNotTold,
    /// The store takes what ends later for the newer one.
    LaterEndsWin,
    /// Replicas place first turns without a claim.
    NothingIsClaimed,
    /// A store that lost its memory is not told again.
    NothingIsRetold,
    /// What is bound to a slot that is not declared here yet is left aside.
    UnknownSlotsAreIgnored,
    /// A follower goes on behind a gap.
    GapsAreIgnored,
}
