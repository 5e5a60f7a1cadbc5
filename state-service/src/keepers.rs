//! One task for each thing that is wanted, as long as it is wanted. Knows neither what they do nor who wants it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Tasks are compared with what is wanted at least this often, so that one that died is started again.
const RECONCILE: Duration = Duration::from_secs(5);

/// Ticks when tasks are to be compared with what is wanted, whether or not anything changed.
pub(crate) fn regularly() -> Interval {
    let mut regularly = interval(RECONCILE);
    regularly.set_missed_tick_behavior(MissedTickBehavior::Delay);
    regularly
}

/// One task for each thing that is wanted, for ever: compared when `members` change, and regularly. What `wanted` holds must
/// keep the sender of `members` alive.
pub(crate) async fn follow<K, F>(
    mut members: watch::Receiver<u64>,
    wanted: impl Fn() -> BTreeSet<K>,
    mut start: impl FnMut(K) -> F,
) where
    K: Clone + Ord,
    F: Future<Output = ()> + Send + 'static,
{
    let mut keepers = Keepers::default();
    let mut regularly = regularly();
    loop {
        tokio::select! {
            _ = regularly.tick() => {}
            _ = members.changed() => {}
        }
        keepers.settle(&wanted(), |key| (start(key), ()));
    }
}

/// Tasks by what each is for, and what its owner keeps beside it. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Keepers<K, V = ()> {
    tasks: JoinSet<()>,
    running: BTreeMap<K, (AbortHandle, V)>,
}

impl<K, V> Default for Keepers<K, V> {
    fn default() -> Self {
        Self { tasks: JoinSet::new(), running: BTreeMap::new() }
    }
}

impl<K: Clone + Ord, V> Keepers<K, V> {
    /// Ends the tasks of what is wanted no more, and starts one for whatever has none: it is new, or its task died.
    pub(crate) fn settle<F>(&mut self, wanted: &BTreeSet<K>, mut start: impl FnMut(K) -> (F, V))
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.running.retain(|key, (task, _)| {
            let keep = wanted.contains(key) && !task.is_finished();
            if !keep {
                task.abort();
            }
            keep
        });
        for key in wanted {
            self.running.entry(key.clone()).or_insert_with(|| {
                let (task, beside) = start(key.clone());
                (self.tasks.spawn(task), beside)
            });
        }
        while self.tasks.try_join_next().is_some() {}
    }

    /// What runs, and what is kept beside it.
    pub(crate) fn running(&self) -> impl Iterator<Item = (&K, &V)> {
        self.running.iter().map(|(key, (_, beside))| (key, beside))
    }
}
