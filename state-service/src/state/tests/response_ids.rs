//! Requests that know a session only by what an engine called one of its answers.

use super::world::{World, pool, route_request, session};
use crate::state::{Command, Limits};
use expect_test::expect;
use routing::contract::{Entry, Outcome, Report, SessionRef};
use routing::id::{RankHash, SessionId};
use routing::time::Millis;

#[test]
fn an_answer_leads_to_its_session() {
    let mut world = World::of(|_| ());
    let said = world.play(
        "worker w1; worker w2; route a r1; commit a r1; alias x a; report B w1=9; route - r2@B alias=x; route - r3@B alias=y;
         alias x b; route - r4 alias=x; count alias_unknown; count alias_found; fail b r4; report B; delete a; alias x a; route - r5 alias=x",
    );
    expect![[r#"
        worker w1 -> Created
        worker w2 -> Created
        route a r1 -> held w1 v1 least_loaded
        commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
        alias x a -> Bound w1 v1 [alias_learned]
        report B w1=9 -> w1=9+0 w2=0+0
        route - r2@B alias=x -> bound w1 v1 bound
        route - r3@B alias=y -> unpinned w2 v0 least_loaded
        alias x b -> none [alias_learned]
        route - r4 alias=x -> held w2 v2 least_loaded
        count alias_unknown -> 1
        count alias_found -> 2
        fail b r4 -> none [holds_rolled_back]
        report B -> w1=0+0 w2=0+0
        delete a -> done
        alias x a -> Released - v3 [alias_learned]
        route - r5 alias=x -> held w1 v4 least_loaded
    "#]]
    .assert_eq(&said);
}

#[test]
fn the_session_behind_an_answer_is_told_and_a_key_of_its_own_goes_first() {
    let mut world = World::of(|_| ());
    world.play("worker w1; alias x a");
    let mut asked = route_request("b", 1, "A");
    asked.alias = Some(session("x").id);
    let own = world.route(asked.clone(), 0);
    assert_eq!((own.session, own.outcome), (None, Outcome::Held));
    assert!(world.state.session(world.now, session("b").id).is_some());
    asked.session = None;
    let behind = world.route(asked, 0);
    assert_eq!((behind.session, behind.outcome), (Some(session("a")), Outcome::Held));
}

#[test]
fn an_answer_not_reported_yet_is_known_from_the_question() {
    let mut world = World::of(|_| ());
    world.play("worker w1");
    let mut asked = route_request("a", 1, "A");
    asked.session = None;
    asked.alias = Some(session("x").id);
    asked.unsent = vec![Entry::Alias { alias: session("x").id, session: session("a"), pool: pool() }];
    assert_eq!(world.route(asked, 0).session, Some(session("a")));
}

/// Its caller knows no other name of the session, so its failure bears the answer's.
#[test]
fn a_request_that_hangs_on_an_answer_and_fails_leaves_no_hold() {
    let mut world = World::of(|_| ());
    let said = world.play(
        "worker w1; alias x a; route - r1 alias=x; fail x r1; route - r2 alias=x; fail x r3; fail x r2",
    );
    expect![[r#"
        worker w1 -> Created
        alias x a -> none [alias_learned]
        route - r1 alias=x -> held w1 v1 least_loaded
        fail x r1 -> none [holds_rolled_back]
        route - r2 alias=x -> held w1 v2 least_loaded
        fail x r3 -> Held { owners: 1 } w1 v2 [failed_late]
        fail x r2 -> none [holds_rolled_back]
    "#]]
    .assert_eq(&said);
    assert_eq!(world.state.sizes().holds, 0);
}

#[test]
fn an_answer_is_forgotten_when_it_was_not_used_for_the_pools_ttl() {
    let mut world = World::of(|_| ());
    let said = world.play(
        "worker w1; alias x a; wait 1000s; route - r1 alias=x; wait 1000s; route - r2 alias=x; wait 1801s; route - r3 alias=x; count alias_expired",
    );
    let routes: Vec<&str> = said.lines().filter(|line| line.starts_with("route")).collect();
    assert!(routes[0].contains("held") && routes[1].contains("held"), "{said}");
    assert!(routes[2].contains("unpinned") && said.ends_with("count alias_expired -> 1\n"), "{said}");
    assert_eq!(world.state.sizes().aliases, 0);
}

#[test]
fn pools_that_pin_nothing_learn_no_answers() {
    let mut world = World::of(|pool| pool.affinity = routing::contract::Affinity::Off);
    assert!(world.play("worker w1; alias x a").contains("alias_unstored"));
    assert_eq!(world.state.sizes().aliases, 0);
}

#[test]
fn a_million_answers_stay_within_the_table_and_one_in_use_stays() {
    let mut world = World::new(Limits { aliases_max: 16_384, ..Limits::SERVICE });
    world.play("worker w1; alias x a");
    for batch in 0..250u128 {
        let told = |n: u128| Entry::Alias {
            alias: SessionId((batch * 4000 + n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)),
            session: SessionRef { id: SessionId(n), rank_hash: RankHash(1) },
            pool: pool(),
        };
        world.now += Millis(10);
        let entries = (0..4000).map(told).collect();
        let caller = super::world::caller("A");
        let seq = u64::try_from(batch).unwrap() + 10;
        world.apply(Command::Report(Report {
            caller,
            seq,
            in_flight: vec![],
            entries,
            upstream_role_missing: 0,
        }));
        assert!(world.play(&format!("route - r{} alias=x", 7 + batch % 2)).contains("held"));
    }
    assert_eq!(world.state.sizes().aliases, 16_384);
    assert_eq!(world.state.counters().alias_evicted, 1_000_001 - 16_384);
    world.state.aliases.check();
}
