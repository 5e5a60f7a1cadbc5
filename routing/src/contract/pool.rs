//! Pools as filters learn them: policy, affinity, ranks.

use super::is_default;
use crate::id::PoolName;
use crate::time::Millis;
use serde::{Deserialize, Serialize};

/// How a pool chooses and pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolInfo {
    /// Its name.
    pub name: PoolName,
    /// How a slot is chosen.
    #[serde(default)]
    pub policy: Policy,
    /// How strongly a session is pinned.
    #[serde(default)]
    pub affinity: Affinity,
    /// Idle time after which a binding expires.
    #[serde(default = "default_ttl")]
    pub ttl_ms: Millis,
    /// Under `device_aware`: how many times the load of a CPU worker an accelerator carries, >= 1.
    #[serde(default = "default_device_ratio", skip_serializing_if = "is_default_device_ratio")]
    pub device_ratio: u32,
    /// Who chooses the rank of a session's turns.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rank: RankChoice,
    /// How the rank of a new binding is chosen.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rank_pick: RankPick,
    /// Under `soft`: a session stays while its worker's load is at most this many percent of the best one's, plus
    /// [`SOFT_SLACK`]; >= 100.
    #[serde(default = "default_soft_margin", skip_serializing_if = "is_default_soft_margin")]
    pub soft_margin_percent: u32,
    /// What becomes of a bound turn whose slot is overloaded.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_overload: OnOverload,
    /// Under [`OnOverload::Wait`]: the longest wait for the bound slot; then the turn is spilled.
    #[serde(default = "default_wait", skip_serializing_if = "is_default_wait")]
    pub wait_ms: Millis,
    /// What becomes of a turn when every slot it might go to is overloaded.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_all_overloaded: OnAllOverloaded,
    /// Requests in flight on one slot from which on it counts as overloaded; a worker may state its own. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight_limit: Option<u32>,
    /// Model names it serves: its own and those of its workers, sorted. Empty: whatever is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// A request that the service places should bring its prompt.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reads_prompt: bool,
}

/// What becomes of a bound turn whose slot is alive but overloaded (affinity section 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnOverload {
    /// It waits for the slot up to [`PoolInfo::wait_ms`], then it is spilled.
    Wait,
    /// The client gets 429 with `Retry-After`.
    Refuse,
    /// It is served elsewhere this once, the binding stays. Also how a word this build does not know is read.
    #[default]
    #[serde(other)]
    Spill,
}

/// What becomes of a turn when every slot it might go to is overloaded (affinity section 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnAllOverloaded {
    /// The client gets 429 with `Retry-After`.
    Refuse,
    /// It goes to the least loaded. Also how a word this build does not know is read.
    #[default]
    #[serde(other)]
    LeastLoaded,
}

/// Default and largest [`PoolInfo::wait_ms`].
pub const WAIT_MAX: Millis = Millis(2000);

const fn default_wait() -> Millis {
    WAIT_MAX
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_default_wait(wait: &Millis) -> bool {
    *wait == WAIT_MAX
}

/// Who chooses the rank of a session's turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankChoice {
    /// The binding: its own rank, or the session's hash where it has none.
    Pinned,
    /// The engine, always: no rank is sent.
    Engine,
    /// As the affinity has it: `hard` like `pinned`; `soft` sends a rank only if the binding has one. Also how a word this
    /// build does not know is read.
    #[default]
    #[serde(other)]
    Auto,
}

/// How the rank of a new binding is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankPick {
    /// Least loaded while the service answers: the hashed rank unless it has more than [`RANK_PICK_MARGIN`] requests above
    /// the least.
    LeastLoaded,
    /// By the session's hash. Also how a word this build does not know is read.
    #[default]
    #[serde(other)]
    Hash,
}

/// Requests by which the hashed rank may exceed the least loaded one under [`RankPick::LeastLoaded`] (affinity section 5).
pub const RANK_PICK_MARGIN: u64 = 2;

/// Default of [`PoolInfo::soft_margin_percent`] (affinity section 4).
pub const SOFT_MARGIN_PERCENT_DEFAULT: u32 = 150;

/// Requests above the margin that never move a soft session (affinity section 4).
pub const SOFT_SLACK: u64 = 2;

/// What a last report has and no further one takes back for so long stands: counts are told this often while they change (`tick_ms`,
/// and the way to another replica). What only the last report has may be over, and moves no soft session.
pub const LOAD_STANDS_AFTER: Millis = Millis(250);

/// A report is compared with one so much older: those that follow a commit at once say the same thing twice.
pub const LOAD_REPORTS_APART: Millis = Millis(50);

/// Whether a soft session stays: `load(bound) <= margin x load(best) + 2`, in integers.
#[must_use]
pub fn soft_stays(margin_percent: u32, bound: u64, best: u64) -> bool {
    let allowed = u128::from(best) * u128::from(margin_percent.max(100)) + u128::from(SOFT_SLACK) * 100;
    u128::from(bound) * 100 <= allowed
}

const fn default_soft_margin() -> u32 {
    SOFT_MARGIN_PERCENT_DEFAULT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
const fn is_default_soft_margin(percent: &u32) -> bool {
    *percent == SOFT_MARGIN_PERCENT_DEFAULT
}

impl PoolInfo {
    /// A pool about which nothing was said: `least_loaded`, `hard`, 1800 s.
    #[must_use]
    pub fn with_defaults(name: PoolName) -> Self {
        Self {
            name,
            policy: Policy::default(),
            affinity: Affinity::default(),
            ttl_ms: TTL_DEFAULT,
            device_ratio: DEVICE_RATIO_DEFAULT,
            rank: RankChoice::default(),
            rank_pick: RankPick::default(),
            soft_margin_percent: SOFT_MARGIN_PERCENT_DEFAULT,
            on_overload: OnOverload::default(),
            wait_ms: WAIT_MAX,
            on_all_overloaded: OnAllOverloaded::default(),
            in_flight_limit: None,
            models: Vec::new(),
            reads_prompt: false,
        }
    }

    /// What a session's turns carry as rank.
    #[must_use]
    pub const fn ranks(&self) -> Ranks {
        match (self.rank, self.affinity) {
            (RankChoice::Engine, _) => Ranks::Engine,
            (RankChoice::Auto, Affinity::Soft) => Ranks::Bound,
            (RankChoice::Pinned | RankChoice::Auto, _) => Ranks::Pinned,
        }
    }
}

/// What a session's turns carry as rank: [`RankChoice`] once the affinity is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// The bound rank, else the hashed one.
    Pinned,
    /// The bound rank, else none.
    Bound,
    /// None.
    Engine,
}

/// An accelerator carries eight times what a CPU worker does (affinity section 10).
pub const DEVICE_RATIO_DEFAULT: u32 = 8;

const fn default_device_ratio() -> u32 {
    DEVICE_RATIO_DEFAULT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
const fn is_default_device_ratio(ratio: &u32) -> bool {
    *ratio == DEVICE_RATIO_DEFAULT
}

/// Idle ttl of a binding: 1800 s (affinity section 3).
pub const TTL_DEFAULT: Millis = Millis::from_secs(1800);

const fn default_ttl() -> Millis {
    TTL_DEFAULT
}

/// How a slot is chosen among candidates (affinity section 10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Weighted rendezvous on the session alone; never asks the service.
    SessionHash,
    /// Workers by id, one after the other.
    RoundRobin,
    /// Uniform.
    Random,
    /// Of two distinct uniform draws the one with fewer in flight; the first drawn on a tie.
    PowerOfTwo,
    /// Keeps CPU workers at a share of what the accelerators carry; see [`PoolInfo::device_ratio`].
    DeviceAware,
    /// The caller names the target; a session that is bound goes on without naming it.
    Direct,
    /// The slot where prefilling and decoding the prompt costs least, what its engine caches and carries considered
    /// (affinity section 11). Only the service knows that: what is placed without it goes by `least_loaded`.
    KvAware,
    /// Fewest in flight, ties uniform. Also how a policy this build does not know is read.
    #[default]
    #[serde(other)]
    LeastLoaded,
}

/// How strongly a session is pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Affinity {
    /// No session state.
    Off,
    /// Turns prefer the bound worker while its load is within a margin of the best one's; else the binding moves.
    Soft,
    /// Every turn goes to the bound slot. Also how a strength this build does not know is read.
    #[default]
    #[serde(other)]
    Hard,
}
