//! What is measured beside what: which Envoy a variant asks, under which keys, and what its turns must be counted as.

/// An Envoy with its config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Front {
    /// `static.yaml` without the filter: maglev on the session header over the same workers.
    Bare,
    /// `static.yaml`, pool `least_loaded`.
    Cluster,
    /// `dynamic.yaml`, pool `least_loaded`.
    Endpoints,
    /// `static.yaml`, pool `session_hash`.
    SessionHash,
    /// `static.yaml`, pool `least_loaded` with soft affinity.
    Soft,
    /// `agents.yaml`, pool `least_loaded`: the key stands in the body.
    Agents,
}

impl Front {
    pub(crate) const ALL: [Self; 6] =
        [Self::Bare, Self::Cluster, Self::Endpoints, Self::SessionHash, Self::Soft, Self::Agents];

    /// `node.id` and name of its files.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Cluster => "cluster",
            Self::Endpoints => "endpoints",
            Self::SessionHash => "session_hash",
            Self::Soft => "soft",
            Self::Agents => "agents",
        }
    }

    /// The filter's counters of which each later turn of a session must raise one by one; none without the filter.
    pub(crate) const fn turn_counters(self) -> &'static [&'static str] {
        match self {
            Self::Bare => &[],
            Self::Cluster | Self::Endpoints | Self::Agents => &["pinned"],
            // With three requests on its worker and none on another it asks first; how often depends on how fast all are.
            Self::Soft => &["pinned", "routed_bound"],
            Self::SessionHash => &["session_hash"],
        }
    }
}

/// One column of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Turns of known sessions.
    Turns(Front),
    /// The same with bodies of [`crate::load::LARGE_BODY_BYTES`].
    Large(Front),
    /// A new session each time.
    First(Front),
}

impl Variant {
    pub(crate) const ALL: [Self; 9] = [
        Self::Turns(Front::Bare),
        Self::Turns(Front::Cluster),
        Self::Turns(Front::Endpoints),
        Self::Turns(Front::SessionHash),
        Self::Turns(Front::Soft),
        Self::Large(Front::Bare),
        Self::Large(Front::Agents),
        Self::First(Front::Endpoints),
        Self::First(Front::Cluster),
    ];

    /// Its word in the names of values.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Turns(front) => front.name(),
            Self::Large(Front::Bare) => "large_bare",
            Self::Large(_) => "body_key",
            Self::First(Front::Endpoints) => "first",
            Self::First(_) => "first_cluster",
        }
    }

    /// What it is compared with: the bare Envoy under the same bodies.
    pub(crate) const fn base(self) -> Self {
        match self {
            Self::Large(_) => Self::Large(Front::Bare),
            Self::Turns(_) | Self::First(_) => Self::Turns(Front::Bare),
        }
    }

    /// Its ratio's name; the bare ones have none.
    pub(crate) const fn ratio(self) -> Option<&'static str> {
        match self {
            Self::Turns(Front::Bare) | Self::Large(Front::Bare) => None,
            Self::Turns(Front::Soft) => Some("soft_over_bare"),
            Self::Turns(Front::Agents) => Some("agents_over_bare"),
            Self::Large(_) => Some("body_key_over_bare"),
            Self::Turns(Front::Cluster) => Some("cluster_over_bare"),
            Self::Turns(Front::Endpoints) => Some("pinned_over_bare"),
            Self::Turns(Front::SessionHash) => Some("session_hash_over_bare"),
            Self::First(Front::Endpoints) => Some("first_over_bare"),
            Self::First(_) => Some("first_cluster_over_bare"),
        }
    }

    /// For the table.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Turns(Front::Bare) => "bare Envoy, maglev on the session",
            Self::Turns(Front::Cluster) => "pinned turn, static.yaml (cluster)",
            Self::Turns(Front::Endpoints) => "pinned turn, dynamic.yaml (endpoints)",
            Self::Turns(Front::SessionHash) => "session_hash turn, static.yaml",
            Self::First(Front::Endpoints) => "first turn, dynamic.yaml",
            Self::Turns(Front::Soft) => "pinned turn, static.yaml, soft",
            Self::Turns(Front::Agents) => "pinned turn, agents.yaml",
            Self::Large(Front::Bare) => "bare Envoy, 20 KB bodies",
            Self::Large(_) => "pinned turn, agents.yaml, 20 KB, key at its end",
            Self::First(_) => "first turn, static.yaml",
        }
    }

    /// The Envoy it asks.
    pub(crate) const fn front(self) -> Front {
        match self {
            Self::Turns(front) | Self::Large(front) | Self::First(front) => front,
        }
    }
}
