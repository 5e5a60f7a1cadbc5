//! Whether the model a request asks for is its pool's base model or an adapter of it: their caches are apart.
//!
//! By the label `lora` first, then by what workers list at `GET /v1/models`, then by their `models`: the first is the base. Of a name
//! that none of them tells nothing is guessed: its prompts are placed by load.

use super::super::{Service, discovery};
use crate::declare::WorkerSpec;
use crate::told::{Asked, Listed};
use routing::id::{PoolName, WorkerId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The label that names a worker's adapters, by comma.
const LORA: &str = "lora";

/// What a request's model is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Named {
    /// The pool's own, or none is asked for.
    #[default]
    Base,
    /// An adapter, as its engine calls it.
    Adapter(String),
    /// Nobody says. With the name, where it is known.
    Unknown(Option<String>),
}

/// What workers listed, and of which pools it was said that a model of theirs is not known.
#[derive(Default)]
pub(super) struct Models {
    listed: Mutex<BTreeMap<WorkerId, Listed>>,
    said: Mutex<BTreeSet<PoolName>>,
}

impl Models {
    pub(super) fn listed(&self) -> MutexGuard<'_, BTreeMap<WorkerId, Listed>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Once a pool. The name is its client's, and not for the log.
    pub(super) fn say_unknown(&self, pool: &PoolName) {
        if self.said.lock().unwrap_or_else(PoisonError::into_inner).insert(pool.clone()) {
            tracing::warn!(
                %pool,
                "a model was asked for that no worker of the pool lists (GET /v1/models) or declares (`models`, base first; label \
                 `lora`): such prompts are placed by load, and counted as rankpin_prompts_unread_total{{reason=\"model\"}}"
            );
        }
    }
}

impl Service {
    /// Every worker of a pool with tokens: what does it list?
    pub fn models_asked(&self) -> BTreeSet<Asked> {
        let state = self.lock();
        let counts = |pool: &PoolName| self.tokenizers.pools.contains_key(pool);
        let of_pools = state.workers().filter(|worker| counts(&worker.spec().pool));
        let open = of_pools.filter_map(|worker| {
            let endpoint = worker.endpoints().iter().find(|endpoint| endpoint.spec.tls.is_none())?;
            Some(discovery::asked_at(worker, endpoint))
        });
        open.collect()
    }

    /// Takes what a worker lists, and forgets what workers listed that are gone.
    pub fn models_listed(&self, worker: &WorkerId, listed: Listed) {
        let ids: BTreeSet<WorkerId> = self.lock().workers().map(|worker| worker.id().clone()).collect();
        let mut all = self.tokenizers.models.listed();
        if all.get(worker) != Some(&listed) {
            let Listed { bases, adapters } = &listed;
            tracing::info!(%worker, ?bases, ?adapters, "a worker lists its models");
        }
        all.insert(worker.clone(), listed);
        all.retain(|id, _| ids.contains(id));
    }
}

/// Those who say what a name is.
pub(super) struct Names<'a> {
    /// The pool's own `models`.
    pub(super) pool: &'a [String],
    /// Its workers, each with what it listed.
    pub(super) workers: Vec<(&'a WorkerSpec, Option<&'a Listed>)>,
}

/// What one name is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Base,
    Adapter,
    /// Both, by different workers.
    Either,
}

impl Names<'_> {
    /// `model`: as asked for; of a body that is not `whole` it may follow in what was cut off.
    pub(super) fn find(&self, model: Option<&str>, whole: bool) -> Named {
        let Some(model) = model.filter(|name| !name.is_empty()) else {
            return if whole || !self.have_adapters() { Named::Base } else { Named::Unknown(None) };
        };
        match (self.said(model), model.split_once(':')) {
            (Some(Said::Base), _) => Named::Base,
            (Some(Said::Adapter), _) => Named::Adapter(model.to_owned()),
            // As SGLang has it: `base:adapter`.
            (None, Some((base, adapter)))
                if self.said(adapter) == Some(Said::Adapter) || self.said(base) == Some(Said::Base) =>
            {
                Named::Adapter(adapter.to_owned())
            }
            (None | Some(Said::Either), _) => Named::Unknown(Some(model.to_owned())),
        }
    }

    fn said(&self, name: &str) -> Option<Said> {
        if self.workers.iter().any(|(spec, _)| labels(spec).any(|one| one == name)) {
            return Some(Said::Adapter);
        }
        let has = |names: &[String]| names.iter().any(|one| one == name);
        let listed = self.workers.iter().filter_map(|(_, listed)| *listed);
        let listed = either(listed.map(|listed| (has(&listed.bases), has(&listed.adapters))));
        let declared = || {
            let all = self.workers.iter().filter_map(|(spec, _)| spec.models.split_first());
            either(all.map(|(base, others)| (base == name, has(others))))
        };
        let of_pool = || matches!(self.pool, [only] if only == name).then_some(Said::Base);
        listed.or_else(declared).or_else(of_pool)
    }

    fn have_adapters(&self) -> bool {
        self.workers.iter().any(|(spec, listed)| match listed {
            _ if labels(spec).next().is_some() => true,
            Some(listed) => !listed.adapters.is_empty(),
            None => spec.models.len() > 1,
        })
    }
}

fn labels(spec: &WorkerSpec) -> impl Iterator<Item = &str> {
    let all = spec.labels.get(LORA).map_or("", String::as_str);
    all.split(',').map(str::trim).filter(|one| !one.is_empty())
}

fn either(each: impl Iterator<Item = (bool, bool)>) -> Option<Said> {
    match each.fold((false, false), |(base, adapter), (b, a)| (base | b, adapter | a)) {
        (false, false) => None,
        (true, false) => Some(Said::Base),
        (false, true) => Some(Said::Adapter),
        (true, true) => Some(Said::Either),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declare::{self, Faults};
    use serde_json::{Value, json};

    fn worker(more: &Value) -> WorkerSpec {
        let mut value = json!({"id": "w", "endpoints": [{"address": "10.0.0.1:80"}]});
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        declare::worker(&value, "worker", None, &mut Faults::default()).unwrap()
    }

    fn listed(bases: &[&str], adapters: &[&str]) -> Listed {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Listed { bases: owned(bases), adapters: owned(adapters) }
    }

    fn adapter(name: &str) -> Named {
        Named::Adapter(name.to_owned())
    }

    fn unknown(name: &str) -> Named {
        Named::Unknown(Some(name.to_owned()))
    }

    #[test]
    fn a_worker_by_its_url_alone_lists_its_adapters() {
        let (spec, listed) = (worker(&json!({})), listed(&["tiny", "tiny-alias"], &["adapter-a"]));
        let names = Names { pool: &[], workers: vec![(&spec, Some(&listed))] };
        assert_eq!(names.find(Some("tiny"), true), Named::Base);
        assert_eq!(names.find(Some("tiny-alias"), true), Named::Base);
        assert_eq!(names.find(Some("adapter-a"), true), adapter("adapter-a"));
        assert_eq!(names.find(Some("tiny:adapter-a"), true), adapter("adapter-a"));
        assert_eq!(names.find(Some("tiny:loaded-just-now"), true), adapter("loaded-just-now"));
        assert_eq!(names.find(Some("adapter-b"), true), unknown("adapter-b"));
        assert_eq!(names.find(None, true), Named::Base);
        // The OpenAI client writes `model` behind `messages`.
        assert_eq!(names.find(None, false), Named::Unknown(None));
    }

    #[test]
    fn declared_models_are_the_base_and_its_adapters_unless_the_worker_lists_them_otherwise() {
        let spec = worker(&json!({"models": ["tiny", "adapter-a"]}));
        let names = |listed| Names { pool: &[], workers: vec![(&spec, listed)] };
        assert_eq!(names(None).find(Some("tiny"), true), Named::Base);
        assert_eq!(names(None).find(Some("adapter-a"), true), adapter("adapter-a"));
        assert_eq!(names(None).find(Some("other"), true), unknown("other"));
        let aliases = listed(&["tiny", "adapter-a"], &[]);
        assert_eq!(names(Some(&aliases)).find(Some("adapter-a"), true), Named::Base);
        assert_eq!(names(Some(&aliases)).find(None, false), Named::Base);
    }

    #[test]
    fn a_label_goes_first_and_what_workers_contradict_each_other_about_is_not_known() {
        let (labelled, plain) = (worker(&json!({"labels": {"lora": "a, b"}})), worker(&json!({})));
        let (one, other) = (listed(&["tiny", "b"], &["c"]), listed(&["c"], &[]));
        let names = Names { pool: &[], workers: vec![(&labelled, Some(&one)), (&plain, Some(&other))] };
        assert_eq!(names.find(Some("b"), true), adapter("b"));
        assert_eq!(names.find(Some("any:b"), true), adapter("b"));
        assert_eq!(names.find(Some("c"), true), unknown("c"));
    }

    #[test]
    fn where_nobody_says_anything_nothing_is_guessed() {
        let spec = worker(&json!({}));
        let own = ["tiny".to_owned()];
        let names = |pool| Names { pool, workers: vec![(&spec, None)] };
        assert_eq!(names(&[]).find(Some("tiny"), true), unknown("tiny"));
        assert_eq!(names(&own).find(Some("tiny"), true), Named::Base);
        assert_eq!(names(&[]).find(None, false), Named::Base);
    }
}
