//! What Envoys still know after the service lost its memory: uploads, touches that name a slot, and VMs told dead.

use super::world::{World, caller, check, session, worker_id};
use crate::state::{Command, Limits, SessionState};
use expect_test::expect;
use routing::contract::{KeptBinding, KeptSlot, PageUpload, SessionRef, UPLOAD_BINDINGS_MAX};
use routing::hash::worker_hash;
use routing::id::{Rank, RankHash, SessionId, Version};
use routing::time::Millis;

#[test]
fn uploaded_bindings_are_merged_by_version_and_conflicts_are_told() {
    check(
        "worker w1 ranks=0..8; worker w2; upload a v=3/9 on=w1:5; moves; route a r1@B; upload a v=3/9 on=w1:5;
         upload a v=2/9 on=w1:5; moves; upload a v=2/9 on=w2; moves; upload a v=4/9 on=w2; moves; upload a v=4/9 on=w1:5; moves;
         delete a; upload a v=4/9 on=w2; moves; upload b v=4611686018427387905/1 on=w2",
        &expect![[r#"
            worker w1 ranks=0..8 -> Created
            worker w2 -> Created
            upload a v=3/9 on=w1:5 -> Bound w1:5 v3/9 [merge_inserted]
            moves -> nothing
            route a r1@B -> bound w1:5 v3/9 bound
            upload a v=3/9 on=w1:5 -> Bound w1:5 v3/9 [merge_refreshed]
            upload a v=2/9 on=w1:5 -> Bound w1:5 v3/9 [merge_ignored_conflict]
            moves -> nothing
            upload a v=2/9 on=w2 -> Bound w1:5 v3/9 [merge_ignored_conflict]
            moves -> w1:5 v3/9
            upload a v=4/9 on=w2 -> Bound w2 v4/9 [merge_replaced_newer]
            moves -> w2 v4/9
            upload a v=4/9 on=w1:5 -> Bound w2 v5 [merge_equal_conflict]
            moves -> w2 v5
            delete a -> done
            upload a v=4/9 on=w2 -> Released - v6 [merge_ignored_stale]
            moves -> released v6, released v6
            upload b v=4611686018427387905/1 on=w2 -> none [version_implausible]
        "#]],
    );
}

#[test]
fn an_uploaded_binding_lives_as_long_as_its_envoy_would_have_kept_it() {
    check(
        "worker w1; upload a v=3/9 on=w1 idle=1700s; upload b v=3/9 on=w1 idle=1800s; wait 100s; show a; wait 1s; show a",
        &expect![[r#"
            worker w1 -> Created
            upload a v=3/9 on=w1 idle=1700s -> Bound w1 v3/9 [merge_inserted]
            upload b v=3/9 on=w1 idle=1800s -> none [upload_expired]
            wait 100s -> 1 sessions, 0 held, 0 vms
            show a -> Bound w1 v3/9
            wait 1s -> 0 sessions, 0 held, 0 vms
            show a -> none
        "#]],
    );
}

#[test]
fn a_binding_waits_for_its_worker_to_be_declared() {
    check(
        "upload a v=3/9 on=w1 idle=100s; upload a v=2/9 on=w1; upload a v=1/9 on=w2; wait 30s; worker w2; show a; worker w1 ranks=0..8;
         show a; moves; upload b v=3/9 on=w3; wait 61s; worker w3; show b; count unparked; count parked_expired",
        &expect![[r#"
            upload a v=3/9 on=w1 idle=100s -> none [upload_parked]
            upload a v=2/9 on=w1 -> none [upload_parked]
            upload a v=1/9 on=w2 -> none [upload_parked]
            wait 30s -> 0 sessions, 0 held, 0 vms
            worker w2 -> Created
            show a -> Bound w2 v1/9
            worker w1 ranks=0..8 -> Created
            show a -> Bound w1 v3/9
            moves -> w1 v3/9
            upload b v=3/9 on=w3 -> none [upload_parked]
            wait 61s -> 1 sessions, 0 held, 0 vms
            worker w3 -> Created
            show b -> none
            count unparked -> 2
            count parked_expired -> 1
        "#]],
    );
}

#[test]
fn a_binding_of_a_pool_that_pins_nothing_is_not_kept() {
    use crate::config::{OtherPools, ServiceConfig};
    use routing::contract::Affinity;
    let mut service = ServiceConfig::without_file();
    service.pools[0].affinity = Affinity::Off;
    service.other_pools = OtherPools::Refused;
    let mut world = World::with(crate::state::StateConfig { service, limits: Limits::SERVICE });
    let said = world.play("worker w1; upload a v=3/9 on=w1; touch a v=3/9 on=w1");
    assert!(said.contains("none [upload_unstored]") && said.contains("none [touch_unknown]"), "{said}");
}

fn upload(world: &mut World, bindings: Vec<KeptBinding>) {
    world.apply(Command::Pages(PageUpload { caller: caller("A"), last: false, bindings }));
}

fn binding(n: u64, worker: &str) -> KeptBinding {
    KeptBinding {
        session: SessionRef { id: SessionId(n.into()), rank_hash: RankHash(n) },
        slot: KeptSlot { worker_hash: worker_hash(&worker_id(worker)), rank: Some(Rank(1)) },
        version: Version { seq: 1, writer: 9 },
        idle_ms: Millis(0),
    }
}

#[test]
fn of_too_many_that_wait_the_oldest_go_and_none_waits_twice() {
    let mut world = World::new(Limits::SERVICE);
    for batch in 0..17 {
        upload(&mut world, (0..4096).map(|i| binding(batch * 4096 + i, "w1")).collect());
    }
    assert_eq!(world.state.sizes().parked, 65_536);
    upload(&mut world, (0..4096).map(|i| binding(16 * 4096 + i, "w1")).collect());
    let counters = world.state.counters();
    assert_eq!((counters.parked_dropped, counters.upload_parked), (4096, 18 * 4096));
    world.play("worker w1 ranks=0..8");
    assert_eq!((world.state.sizes().parked, world.state.sizes().sessions), (0, 65_536));
    assert_eq!(world.state.session(world.now, SessionId(4095)), None);
    let kept = world.state.session(world.now, SessionId(4096)).unwrap();
    assert_eq!((kept.state, kept.target.unwrap().rank), (SessionState::Bound, Some(Rank(1))));
    upload(&mut world, vec![binding(1, "w1"); UPLOAD_BINDINGS_MAX + 1]);
    assert_eq!(world.state.counters().upload_bindings_dropped, 1);
}

#[test]
fn what_waits_in_vain_is_forgotten_in_bounded_steps() {
    let mut world = World::new(Limits::SERVICE);
    for batch in 0..5 {
        upload(&mut world, (0..4096).map(|i| binding(batch * 4096 + i, "w1")).collect());
    }
    world.now += Millis(60_001);
    world.apply(Command::Expire);
    assert_eq!(world.state.sizes().parked, 4096);
    world.apply(Command::Expire);
    assert_eq!((world.state.sizes().parked, world.state.counters().parked_expired), (0, 5 * 4096));
}

#[test]
fn a_touch_that_names_its_slot_teaches_what_nobody_told() {
    check(
        "worker w1 ranks=0..8; worker w2; worker w3 pool=other; touch a v=5/9 on=w1:3; show a; route a r1@B; moves;
         touch b v=5/9 on=w1:9; touch b v=5/9 on=w3; touch b v=5/9 on=w4; touch b v=5/9;
         route c r2; touch c v=5/9 on=w2; commit c r2; moves; delete a; touch a v=5/9 on=w2; touch a v=9/9 on=w2; moves",
        &expect![[r#"
            worker w1 ranks=0..8 -> Created
            worker w2 -> Created
            worker w3 pool=other -> Created
            touch a v=5/9 on=w1:3 -> Bound w1:3 v5/9 [merge_inserted touch_inserted]
            show a -> Bound w1:3 v5/9
            route a r1@B -> bound w1:3 v5/9 bound
            moves -> nothing
            touch b v=5/9 on=w1:9 -> none [touch_unknown]
            touch b v=5/9 on=w3 -> none [touch_unknown]
            touch b v=5/9 on=w4 -> none [touch_unknown]
            touch b v=5/9 -> none [touch_unknown]
            route c r2 -> held w2 v1 least_loaded
            touch c v=5/9 on=w2 -> Bound w2 v5/9 [holds_gave_way merge_inserted touch_inserted]
            commit c r2 -> Bound w2 v5/9 [merge_ignored_conflict]
            moves -> w2 v5/9
            delete a -> done
            touch a v=5/9 on=w2 -> Released - v6 [touch_late]
            touch a v=9/9 on=w2 -> Bound w2 v9/9 [merge_replaced_newer touch_newer]
            moves -> released v6, released v6, w2 v9/9
        "#]],
    );
}

#[test]
fn one_version_does_not_stay_with_two_slots() {
    check(
        "worker w1; worker w2; route a r1; commit a r1 on=w1; touch a v=1 on=w2; moves; touch a v=1 on=w2; moves; touch a v=2 on=w1;
         probe w1 ---; touch a v=2 on=w2; moves; probe w2 ---; touch a v=3 on=w1",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 on=w1 -> Bound w1 v1 [holds_committed merge_inserted]
            touch a v=1 on=w2 -> Bound w1 v2 [touch_split]
            moves -> w1 v2
            touch a v=1 on=w2 -> Bound w1 v2 [touch_late]
            moves -> w1 v2
            touch a v=2 on=w1 -> Bound w1 v2 []
            probe w1 --- -> Down
            touch a v=2 on=w2 -> Bound w2 v3 [touch_split]
            moves -> w2 v3
            probe w2 --- -> Down
            touch a v=3 on=w1 -> Bound w2 v3 []
        "#]],
    );
}

#[test]
fn a_newer_touch_with_its_slot_is_believed_and_without_one_outbid() {
    check(
        "worker w1; worker w2; route a r1; commit a r1; touch a v=4/9 on=w2; moves; touch a v=6/9 on=w3; moves; touch a v=9/9;
         probe w2 ---; touch a v=12/9 on=w3; touch a v=12/9 on=w1; moves",
        &expect![[r#"
            worker w1 -> Created
            worker w2 -> Created
            route a r1 -> held w1 v1 least_loaded
            commit a r1 -> Bound w1 v1 [holds_committed merge_inserted]
            touch a v=4/9 on=w2 -> Bound w2 v4/9 [merge_replaced_newer touch_newer]
            moves -> w2 v4/9
            touch a v=6/9 on=w3 -> Bound w2 v7 [touch_newer]
            moves -> w2 v7
            touch a v=9/9 -> Bound w2 v10 [touch_newer]
            probe w2 --- -> Down
            touch a v=12/9 on=w3 -> Bound w2 v10 [touch_newer]
            touch a v=12/9 on=w1 -> Bound w1 v12/9 [merge_replaced_newer touch_newer]
            moves -> w2 v10, w1 v12/9
        "#]],
    );
}

#[test]
fn a_vm_told_dead_takes_its_load_and_holds_along_and_may_come_back() {
    check(
        "worker w1; report A w1=1; report B w1=2; route a r1@B; route a r2@A; route b r3@B; gone B; show a; show b; gone B; gone A;
         report B w1=2; count vms_gone; count holds_orphaned; gone C",
        &expect![[r#"
            worker w1 -> Created
            report A w1=1 -> w1=1+0
            report B w1=2 -> w1=3+0
            route a r1@B -> held w1 v1 least_loaded
            route a r2@A -> held w1 v1 joined
            route b r3@B -> held w1 v2 least_loaded
            gone B -> w1=0+0 1 held
            show a -> Held { owners: 1 } w1 v1
            show b -> none
            gone B -> w1=0+0 1 held
            gone A -> w1=0+0 0 held
            report B w1=2 -> w1=2+0
            count vms_gone -> 2
            count holds_orphaned -> 2
            gone C -> w1=2+0 0 held
        "#]],
    );
}

#[test]
fn a_vm_of_another_envoy_is_none_of_the_tellers_business() {
    use routing::contract::{Caller, Entry, Report};
    let mut world = World::new(Limits::SERVICE);
    world.play("worker w1; report A w1=1");
    let other = Caller { node: "another".to_owned(), vm: caller("B").vm };
    let entries = vec![Entry::VmGone { vm: caller("A").vm }];
    let report = Report { caller: other, seq: 1, in_flight: Vec::new(), entries, upstream_role_missing: 0 };
    world.apply(Command::Report(report));
    assert_eq!((world.state.counters().vms_gone, world.state.sizes().vms), (0, 2));
    assert_eq!(world.state.worker(&worker_id("w1")).unwrap().in_flight(), 1);
    assert_eq!(world.state.session(world.now, session("a").id), None);
}
