//! What sessions cost, counted by the allocator: a million distinct ones stay within the table, and one in use keeps its slot.

use peak_alloc::PeakAlloc;
use routing::contract::{Caller, Entry, Outcome, Report, RouteRequest, SessionRef, Target};
use routing::id::{Epoch, PoolName, RankHash, RequestId, SessionId, Version, WorkerId};
use routing::time::{Millis, Timestamp};
use state_service::config::ServiceConfig;
use state_service::declare;
use state_service::state::{Command, Limits, Reply, State, StateConfig};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// A quarter of the table of a real service, so that a million sessions go through it four times.
const SESSIONS_MAX: usize = 262_144;
const SESSIONS: u128 = 1_000_000;
const BATCH: u128 = 4000;
/// What one session may cost, in bytes: its entry and its place in the order of forgetting, in B-trees two thirds full.
const BYTES_A_SESSION: usize = 200;
/// The same of one session whose latest change replicas or hosts can follow.
const BYTES_A_CHANGE: usize = 128;
/// The same of one response id.
const BYTES_AN_ALIAS: usize = 160;

fn pool() -> PoolName {
    PoolName::parse("default").unwrap()
}

fn caller() -> Caller {
    Caller { node: "n".to_owned(), vm: Epoch(11) }
}

fn state(limits: Limits) -> State {
    let mut state = State::new(Epoch(7), StateConfig { service: ServiceConfig::without_file(), limits });
    for (id, port) in [("w1", 8001), ("w2", 8002)] {
        let body = format!(r#"{{"endpoints": [{{"address": "127.0.0.1:{port}", "dp_size": 8}}]}}"#);
        let spec = declare::parse(body.as_bytes(), Some(id)).unwrap();
        assert!(matches!(apply(&mut state, 0, Command::PutWorker { spec }), Reply::Declared(_)));
    }
    state
}

fn apply(state: &mut State, now: u64, command: Command) -> Reply {
    state.apply(Timestamp(now), command, &mut Vec::new())
}

fn session(n: u128) -> SessionRef {
    SessionRef {
        id: SessionId(n.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)),
        rank_hash: RankHash(n as u64),
    }
}

fn commit(n: u128, worker: &str) -> Entry {
    Entry::Committed {
        session: session(n),
        pool: pool(),
        request: RequestId(n as u64),
        hold: None,
        target: Target { worker: WorkerId::parse(worker).unwrap(), rank: None },
        version: Version { seq: 1, writer: 3 },
    }
}

fn report(state: &mut State, now: u64, entries: Vec<Entry>) {
    let report = Report { caller: caller(), seq: now, in_flight: vec![], entries, upstream_role_missing: 0 };
    assert_eq!(apply(state, now, Command::Report(report)), Reply::Done);
}

/// A state that was told of [`SESSIONS`] sessions, and what one that it keeps costs.
fn filled(journal_max: usize) -> (State, usize) {
    let limits =
        Limits { sessions_max: SESSIONS_MAX, aliases_max: SESSIONS_MAX, journal_max, ..Limits::SERVICE };
    let mut state = state(limits);
    report(&mut state, 1, vec![commit(0, "w2")]);
    let before = ALLOCATOR.current_usage();
    for batch in 0..SESSIONS / BATCH {
        let now = 10 + 10 * batch as u64;
        report(&mut state, now, (1..=BATCH).map(|n| commit(batch * BATCH + n, "w1")).collect());
        let live = RouteRequest {
            session: Some(session(0)),
            ..RouteRequest::new(caller(), RequestId(u64::MAX), pool(), Millis(30))
        };
        let Reply::Route(reply) =
            apply(&mut state, now + 1, Command::Route { request: live, prompt: None, draw: 0 })
        else {
            panic!()
        };
        assert_eq!((reply.outcome, reply.target.unwrap().worker.as_str()), (Outcome::Bound, "w2"));
    }
    let bytes = (ALLOCATOR.current_usage() - before) / SESSIONS_MAX;
    let sizes = state.sizes();
    assert_eq!((sizes.sessions, sizes.holds, sizes.moves), (SESSIONS_MAX, 0, 0));
    (state, bytes)
}

/// One test, so that nothing else allocates meanwhile.
#[test]
fn a_million_sessions_and_answers_stay_within_what_is_stated_and_a_live_session_keeps_its_slot() {
    let (mut state, bytes) = filled(0);
    println!("{SESSIONS} distinct sessions, {SESSIONS_MAX} kept: {bytes} bytes a session");
    assert!(bytes <= BYTES_A_SESSION, "{bytes} bytes a session");
    let (followed, with_journal) = filled(SESSIONS_MAX);
    assert_eq!(followed.sizes().journal, SESSIONS_MAX);
    drop(followed);
    let more = with_journal - bytes;
    println!("{more} bytes more a session that can be followed");
    assert!(more <= BYTES_A_CHANGE, "{more} bytes a change");

    let before = ALLOCATOR.current_usage();
    for batch in 0..SESSIONS / BATCH {
        let alias = |n: u128| Entry::Alias {
            alias: session(n + (batch * BATCH + 1) * 7919).id,
            session: session(n),
            pool: pool(),
        };
        report(&mut state, 100_000 + 10 * batch as u64, (1..=BATCH).map(alias).collect());
    }
    let bytes = (ALLOCATOR.current_usage() - before) / SESSIONS_MAX;
    println!("{SESSIONS} response ids, {} kept: {bytes} bytes each", state.sizes().aliases);
    assert_eq!(state.sizes().aliases, SESSIONS_MAX);
    assert!(bytes <= BYTES_AN_ALIAS, "{bytes} bytes a response id");
}
