//! One task for each thing that is wanted, as long as it is wanted. Knows neither what they do nor who wants it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use tokio::task::{AbortHandle, JoinSet};

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
