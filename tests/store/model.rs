//! The same generated histories through the script, through Rust's own merge and through a model, in any order, in any batches and
//! with repetitions: all end with the same state of every session.

use std::collections::BTreeMap;

use anyhow::Result;
use e2e::Redis;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use routing::contract::Target;
use routing::hash::worker_hash;
use routing::id::{Epoch, Rank, SessionId, Version, WorkerId};
use routing::time::{Millis, Timestamp};
use state_service::config::ServiceConfig;
use state_service::declare;
use state_service::state::{Binding, Command, Limits, Reply, State, StateConfig};
use state_service::store::Store;

use crate::support::{self, session};

const SESSIONS: u64 = 3;
const CASES: u32 = 48;
const NOW: u64 = 1_700_000_000_000;

/// Few versions and places, so that most histories have conflicts.
fn any_binding() -> impl Strategy<Value = Binding> {
    let place = prop_oneof![Just(None), (0..3_u8, proptest::option::of(0..2_u32)).prop_map(Some)];
    (0..SESSIONS, 1..5_u64, 1..3_u64, place, 1..5_u64).prop_map(|(number, seq, writer, place, end)| Binding {
        session: session(number),
        version: Version { seq, writer },
        target: place.map(|(worker, rank)| Target {
            worker: WorkerId::parse(&format!("w{worker}")).unwrap(),
            rank: rank.map(Rank),
        }),
        expires_in_ms: Millis(end * 1000),
        generation: seq,
    })
}

/// What the newest is, said without a text.
type Key = (Version, bool, u64, u32, u64);

fn key(of: &Binding) -> Key {
    let target = of.target.as_ref();
    let (hash, rank) = target
        .map_or((0, 0), |target| (worker_hash(&target.worker), target.rank.map_or(u32::MAX, |rank| rank.0)));
    (of.version, target.is_none(), hash, rank, of.expires_in_ms.0)
}

type Known = BTreeMap<SessionId, Binding>;

fn model(history: &[Binding]) -> Known {
    let mut known = Known::new();
    for binding in history {
        let newest = known.entry(binding.session.id).or_insert_with(|| binding.clone());
        if key(binding) > key(newest) {
            *newest = binding.clone();
        }
    }
    known
}

async fn through_the_script(store: &Store, history: &[Binding], batch: usize) -> Result<Known> {
    for part in history.chunks(batch) {
        store.merge(part, &[]).await?;
    }
    let ids: Vec<_> = (0..SESSIONS).map(|number| session(number).id).collect();
    Ok(store.read(&ids).await?.into_iter().map(|binding| (binding.session.id, binding)).collect())
}

/// A history in another order with some of it twice.
fn any_histories() -> impl Strategy<Value = (Vec<Binding>, Vec<Binding>, usize)> {
    let history = proptest::collection::vec(any_binding(), 1..40);
    let twice = history.prop_flat_map(|history| {
        let repeated = proptest::collection::vec(0..history.len(), 0..20);
        (Just(history), repeated)
    });
    let shuffled = twice.prop_flat_map(|(history, repeated)| {
        let mut other = history.clone();
        other.extend(repeated.iter().map(|nth| history[*nth].clone()));
        (Just(history), Just(other).prop_shuffle())
    });
    (shuffled, 1..20_usize).prop_map(|((history, other), batch)| (history, other, batch))
}

/// Runs a property that asks a server.
fn check<T: std::fmt::Debug>(
    histories: impl Strategy<Value = T>,
    property: &impl AsyncFn(&Redis, T) -> Result<()>,
) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = runtime.block_on(Redis::start()).unwrap();
    let config = Config { failure_persistence: None, ..Config::with_cases(CASES) };
    let run = |history| {
        let ran = runtime.block_on(async {
            redis.command::<()>(&["FLUSHALL"]).await?;
            property(&redis, history).await
        });
        ran.map_err(|error| TestCaseError::fail(error.to_string()))
    };
    TestRunner::new(config).run(&histories, run).unwrap();
}

fn same(what: &str, a: &Known, b: &Known) -> Result<()> {
    anyhow::ensure!(a == b, "{what}: {a:#?}\n{b:#?}");
    Ok(())
}

#[test]
fn any_order_any_batches_and_repetitions_end_alike_and_as_the_model_says() {
    check(any_histories(), &async |redis, (history, other, batch)| {
        let store = support::store_at(redis, 1, NOW).await?.0;
        let first = through_the_script(&store, &history, 256).await?;
        same("the model", &first, &model(&history))?;
        same("once more", &through_the_script(&store, &history, batch).await?, &first)?;
        redis.command::<()>(&["FLUSHALL"]).await?;
        same("in another order", &through_the_script(&store, &other, batch).await?, &first)
    });
}

/// One place for each version, as makers of versions give them; the rest is as above.
fn by_one_maker(mut history: Vec<Binding>) -> Vec<Binding> {
    let mut places = BTreeMap::new();
    for binding in &mut history {
        let place = (binding.session.id, binding.version);
        binding.target = places.entry(place).or_insert_with(|| binding.target.clone()).clone();
    }
    history
}

/// A service's state that knows the workers of these histories.
fn state() -> State {
    let config = StateConfig { service: ServiceConfig::without_file(), limits: Limits::SERVICE };
    let mut state = State::new(Epoch(7), config);
    for number in 0..3 {
        declare_worker(&mut state, &format!("w{number}"));
    }
    state
}

fn declare_worker(state: &mut State, id: &str) {
    let endpoint = serde_json::json!({"address": format!("{id}.test:8000"), "dp_start": 0, "dp_size": 2});
    let declaration = serde_json::json!({"pool": "default", "endpoints": [endpoint]}).to_string();
    let spec = declare::parse(declaration.as_bytes(), Some(id)).unwrap();
    state.apply(Timestamp(NOW), Command::PutWorker { spec }, &mut Vec::new());
}

fn through_the_state(history: &[Binding]) -> Result<Known> {
    let (mut state, now) = (state(), Timestamp(NOW));
    for part in history.chunks(7) {
        let command = Command::Apply { writer: 9, bindings: part.to_vec() };
        let reply = state.apply(now, command, &mut Vec::new());
        anyhow::ensure!(matches!(reply, Reply::Applied(_)), "{reply:?}");
    }
    let (bindings, rest) = state.bindings_from(now, SessionId(0), 1000);
    anyhow::ensure!(rest.is_none(), "not all of them");
    Ok(bindings.into_iter().map(|binding| (binding.session.id, binding)).collect())
}

#[test]
fn the_script_and_the_state_end_alike() {
    // A rank that was not said is the only one of a worker with one: the state says which, the store repeats what it was told.
    let ranked = any_histories().prop_map(|(history, other, batch)| {
        let with_ranks = |history: Vec<Binding>| {
            let mut history = by_one_maker(history);
            for target in history.iter_mut().filter_map(|binding| binding.target.as_mut()) {
                target.rank.get_or_insert(Rank(0));
            }
            history
        };
        let history = with_ranks(history);
        // The same bindings in the other order: by what they are, since places were made alike.
        let mut places: BTreeMap<_, _> = history
            .iter()
            .map(|binding| ((binding.session.id, binding.version), binding.target.clone()))
            .collect();
        let mut other = other;
        for binding in &mut other {
            let place = places.entry((binding.session.id, binding.version)).or_insert(None);
            binding.target = place.clone();
        }
        (history, other, batch)
    });
    check(ranked, &async |redis, (history, other, batch)| {
        let store = support::store_at(redis, 1, NOW).await?.0;
        let forget_generation = |mut known: Known| {
            known.values_mut().for_each(|binding| binding.generation = 0);
            known
        };
        let script = forget_generation(through_the_script(&store, &other, batch).await?);
        let rust = forget_generation(through_the_state(&history)?);
        same("script and state", &script, &rust)
    });
}
