//! What the state counts: one named number for every decision, and for everything ignored, evicted or dropped.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),* $(,)?) => {
        /// Counts since this life of the service began.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Counters {
            /// Every counter with its name, in a fixed order: for metrics.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                self.described().map(|(name, _, count)| (name, count))
            }

            /// The same with what each one counts, in its own words, between name and count.
            pub fn described(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($doc),+).trim_ascii_start(), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Routes answered with a fresh hold.
    route_held,
    /// Routes that joined the hold of another request.
    route_joined,
    /// Routes answered with a binding.
    route_bound,
    /// Routes answered with a fresh hold because the bound slot was gone.
    route_rebound,
    /// Routes of soft sessions answered with a fresh hold because their worker carried too much, or was suspect.
    route_moved,
    /// Routes of soft sessions answered with a fresh hold because the request's demands exclude the bound slot.
    route_excluded,
    /// Routes whose binding was learned from the caller's cache.
    route_adopted,
    /// Routes without a session, or under a policy or affinity that pins nothing.
    route_unpinned,
    /// Routes without a usable worker.
    route_no_worker,
    /// Routes of a pool that does not exist.
    route_unknown_pool,
    /// Routes refused: nobody chooses but the caller, and it named no worker.
    refused_worker_required,
    /// Routes refused: the named worker is not declared in the pool.
    refused_worker_unknown,
    /// Routes refused: the named worker does not declare the named rank.
    refused_rank_undeclared,
    /// Routes refused: the session is bound, or held, elsewhere than named.
    refused_bound_elsewhere,
    /// Routes refused: the bound slot is excluded by the request's demands, and affinity is hard.
    refused_excluded,
    /// Routes refused: no worker of the pool meets the request's demands.
    refused_unmet,
    /// Routes refused: the bound slot, or every slot, is overloaded and the pool refuses then.
    refused_overloaded,
    /// Bound turns that began to wait for their overloaded slot.
    wait_begun,
    /// Waits that ended because the slot cleared, or was gone.
    wait_cleared,
    /// Waits that ended because their time was up.
    wait_over,
    /// Waits that ended because whoever asked was gone.
    wait_left,
    /// Turns that did not wait because too many do.
    wait_queue_full,
    /// Times a slot, or a worker as a whole, became overloaded.
    slots_overloaded,
    /// Gauges of engines taken, endpoint by endpoint.
    gauges_taken,
    /// Ranks of engines' gauges that their endpoint does not declare.
    gauges_undeclared_rank,
    /// Slots whose gauges were forgotten because nobody renewed them.
    gauges_forgotten,
    /// Response ids learned, or learned again.
    alias_learned,
    /// Response ids of a pool that pins nothing.
    alias_unstored,
    /// Routes that found their session by a response id.
    alias_found,
    /// Routes whose response id is not known: routed as if they had no session.
    alias_unknown,
    /// Response ids forgotten after their idle ttl.
    alias_expired,
    /// Response ids forgotten for want of room, the one not used for longest first.
    alias_evicted,
    /// Routes refused: the named worker drains or is down.
    refused_worker_unavailable,
    /// Routes that came after the end of their own request: nothing was held for them.
    route_over,
    /// Routes left to the filter: the service is new, and what it does not know another life may have known.
    route_unsure,
    /// Routes that went unpinned because every session in the table was held.
    unpinned_table_full,
    /// Bound routes served elsewhere this once because their slot was overloaded.
    unpinned_spilled,
    /// Routes of a soft session that is held where the request's demands exclude it.
    unpinned_excluded,
    /// Choices of the least loaded because every slot was overloaded.
    chosen_all_overloaded,
    /// Routes that went unpinned because too many VMs were heard of.
    unpinned_vms_full,
    /// Holds an accepted answer ended.
    holds_committed,
    /// Holds that went because every request that owned them failed.
    holds_rolled_back,
    /// Holds that went because the VMs that owned them died.
    holds_orphaned,
    /// Holds that gave way to a binding made elsewhere.
    holds_gave_way,
    /// Holds replaced because their slot went away before any answer.
    holds_replaced,
    /// Joiners past the limit of one hold.
    hold_owners_full,
    /// Merges: nothing was known.
    merge_inserted,
    /// Merges: the same version.
    merge_refreshed,
    /// Merges: ours was older.
    merge_replaced_newer,
    /// Merges: ours was newer.
    merge_ignored_conflict,
    /// Merges: ours was a newer release.
    merge_ignored_stale,
    /// Equal versions with different slots: ours stayed and got a newer version.
    merge_equal_conflict,
    /// Report entries of a kind this build does not know.
    entry_unknown,
    /// Commits on a worker that is not declared (yet): kept, and honoured if it is declared before the next turn.
    commit_unknown_worker,
    /// Commits of a pool that does not exist.
    commit_unknown_pool,
    /// Commits of a pool that pins nothing.
    commit_unstored,
    /// Commits without room in the table.
    commit_table_full,
    /// Failures that named a hold that had passed.
    failed_late,
    /// Touches of a session that is not known.
    touch_unknown,
    /// Touches older than the binding.
    touch_late,
    /// Touches newer than the binding: a commit was lost.
    touch_newer,
    /// Touches that brought a binding nobody had told of.
    touch_inserted,
    /// Touches that found one version with two slots, and ended that.
    touch_split,
    /// Releases done.
    released,
    /// Releases of a session that is not known.
    release_unknown,
    /// Releases older than the binding.
    release_late,
    /// Entries whose version nobody can have given.
    version_implausible,
    /// Observations on slots of workers that are not declared.
    slot_unknown_worker,
    /// Bindings forgotten after their idle ttl.
    sessions_expired,
    /// Bindings evicted, oldest idle first.
    sessions_evicted,
    /// Releases forgotten after their time.
    tombstones_expired,
    /// Releases forgotten for want of room.
    tombstones_evicted,
    /// Moves and releases published to watchers.
    moves_published,
    /// Not published: the worker of the binding is not declared here (yet).
    moves_untold,
    /// Watches answered with a gap.
    watch_gaps,
    /// Reports taken.
    reports,
    /// Reports whose numbers were older than those known.
    reports_old,
    /// Report entries past the limit of one report.
    report_entries_dropped,
    /// Slots in flight past the limit of one report.
    in_flight_dropped,
    /// Reservations past the limit of one VM.
    reservations_dropped,
    /// Uploads of cached bindings taken.
    uploads,
    /// Uploaded bindings past the limit of one upload.
    upload_bindings_dropped,
    /// Uploaded bindings of a pool that pins nothing.
    upload_unstored,
    /// Uploaded bindings whose time was over.
    upload_expired,
    /// Uploaded bindings whose worker was not declared (yet).
    upload_parked,
    /// Bindings applied for other writers that changed what was known.
    applied,
    /// The same that were known already, or older than what is known.
    applied_old,
    /// The same parked: their slot is not declared yet.
    applied_parked,
    /// The same refused: over already, of a pool that pins nothing, of an impossible version, or without room.
    applied_rejected,
    /// Holds that all replicas know of now: claimed here, or by another.
    holds_claimed,
    /// Response ids not told to other replicas: too many at once.
    aliases_not_shared,
    /// Parked bindings whose worker was declared.
    unparked,
    /// Parked bindings forgotten for want of room.
    parked_dropped,
    /// Parked bindings forgotten because their worker was not declared in time.
    parked_expired,
    /// VMs that another VM of their Envoy told dead.
    vms_gone,
    /// VMs that died.
    vms_expired,
    /// Reports of VMs past the limit.
    vms_refused,
    /// Nodes forgotten after their silence.
    nodes_expired,
    /// Nodes forgotten for want of room.
    nodes_evicted,
    /// Acknowledged versions that we never gave.
    acks_from_the_future,
    /// Times a worker went down.
    workers_down,
    /// Times a worker became suspect.
    workers_suspect,
}
