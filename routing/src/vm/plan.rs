//! Notes that the downstream role leaves for the upstream role of the same VM, one a running request.
//!
//! Both roles run in one VM, so a small table beats properties and headers. A [`PlanRef`] carries a generation: a late attempt of
//! a request that ended never touches its successor's plan.

use crate::engine::Surface;
use crate::id::{Rank, RankHash};

/// Most plans at once; beyond it attempts carry no rank and are counted (an Envoy thread holds far fewer requests).
const PLANS_MAX: usize = 1 << 20;

/// What an attempt must know of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What picks the rank on another worker than the chosen one; none where ranks are the engine's.
    pub rank_hash: Option<RankHash>,
    /// The worker chosen.
    pub worker: u64,
    /// Its rank, if one is to be sent.
    pub rank: Option<Rank>,
    /// What is asked: decides whether an engine reads a rank.
    pub surface: Surface,
    /// Length of the client's body, once an attempt has sent another one.
    pub body_bytes: Option<u64>,
    /// Nobody else may serve it: the caller named the target.
    pub exact: bool,
    /// Attempts seen by the upstream role.
    pub attempts: u32,
    /// The last attempt; absent before the first, and when its host is none we know.
    pub last: Option<Dialled>,
    /// Where the request counts as load now.
    pub counted: (u64, Option<Rank>),
}

/// A slot that an attempt went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialled {
    /// The worker, by hash.
    pub worker: u64,
    /// The rank it was for.
    pub rank: Option<Rank>,
    /// Its answer's head came.
    pub answered: bool,
}

/// Names a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanRef {
    index: u32,
    generation: u32,
}

impl PlanRef {
    /// As text for the filter state that both roles share.
    #[must_use]
    pub fn to_text(self) -> String {
        format!("{}.{}", self.index, self.generation)
    }

    /// Reads [`Self::to_text`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (index, generation) = text.split_once('.')?;
        Some(Self { index: index.parse().ok()?, generation: generation.parse().ok()? })
    }
}

#[derive(Debug, Default)]
struct Cell {
    generation: u32,
    plan: Option<Plan>,
}

/// All plans of a VM.
#[derive(Debug, Default)]
pub struct Plans {
    cells: Vec<Cell>,
    free: Vec<u32>,
}

impl Plans {
    /// Keeps a plan; `None` when [`PLANS_MAX`] are kept already.
    pub fn insert(&mut self, plan: Plan) -> Option<PlanRef> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.cells.len() < PLANS_MAX => {
                self.cells.push(Cell::default());
                u32::try_from(self.cells.len() - 1).ok()?
            }
            None => return None,
        };
        let cell = self.cells.get_mut(index as usize)?;
        cell.generation = cell.generation.wrapping_add(1);
        cell.plan = Some(plan);
        Some(PlanRef { index, generation: cell.generation })
    }

    /// The plan, while its request lives.
    #[must_use]
    pub fn get(&self, at: PlanRef) -> Option<&Plan> {
        self.cells.get(at.index as usize).filter(|cell| cell.generation == at.generation)?.plan.as_ref()
    }

    /// The plan, to be changed.
    pub fn get_mut(&mut self, at: PlanRef) -> Option<&mut Plan> {
        self.cells.get_mut(at.index as usize).filter(|cell| cell.generation == at.generation)?.plan.as_mut()
    }

    /// Ends a plan.
    pub fn remove(&mut self, at: PlanRef) -> Option<Plan> {
        let cell = self.cells.get_mut(at.index as usize).filter(|cell| cell.generation == at.generation)?;
        let plan = cell.plan.take()?;
        self.free.push(at.index);
        Some(plan)
    }

    /// Plans kept now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len() - self.free.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
