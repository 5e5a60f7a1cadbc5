//! One state among several: holds become claims, loads and response ids are noted, and alone each places as all would.

use super::world::{World, caller, route_request, session, worker_id};
use crate::state::{
    Binding, Claiming, Command, Effect, Limits, Note, Proposal, Reply, SessionState, Sharing,
};
use routing::contract::{Entry, InFlight, RouteReply, Target};
use routing::id::{RequestId, SessionId, Version};
use routing::time::Millis;

fn world(sharing: Sharing) -> World {
    let mut world = World::new(Limits::SERVICE);
    world.play("worker w1; worker w2; worker w3");
    world.apply(Command::Sharing(sharing));
    world
}

fn held(world: &mut World, name: &str, request: u64) -> (RouteReply, Proposal) {
    let reply = world.route(route_request(name, request, "A"), 0);
    match world.state.claiming(session(name), &reply) {
        Claiming::Propose(proposal) => (reply, proposal),
        other => panic!("{other:?}"),
    }
}

fn target(worker: &str) -> Option<Target> {
    Some(Target { worker: worker_id(worker), rank: None })
}

fn claimed(world: &mut World, proposal: &Proposal, claim: Binding) -> Vec<Effect> {
    let session = proposal.binding.session;
    world.effects(Command::Claimed { session, hold: proposal.hold, claim: Box::new(claim) })
}

fn notes(world: &mut World) -> Vec<Note> {
    match world.apply(Command::TakeNotes) {
        Reply::Notes(notes) => notes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_claimed_hold_is_committed_under_the_version_of_its_claim() {
    let mut world = world(Sharing::Together);
    let (reply, proposal) = held(&mut world, "a", 1);
    assert_eq!((proposal.binding.version, &proposal.binding.target), (reply.version, &reply.target));
    let raised = Version { seq: 9, ..proposal.binding.version };
    assert_eq!(claimed(&mut world, &proposal, Binding { version: raised, ..proposal.binding.clone() }), []);
    // Known to all: not claimed twice, and whoever joins is told its version.
    assert_eq!(world.state.claiming(session("a"), &reply), Claiming::Outdated, "it was answered too early");
    let joined = world.route(route_request("a", 2, "B"), 0);
    assert_eq!((joined.version, joined.target.clone(), joined.hold), (raised, reply.target, reply.hold));
    assert_eq!(world.state.claiming(session("a"), &joined), Claiming::Nothing);
    let said = world.play("route a r5; commit a r5; show a");
    assert!(said.ends_with("show a -> Bound w1 v9\n"), "{said}");
    // What is held next is newer than what others gave.
    assert_eq!(held(&mut world, "b", 3).0.version.seq, 10);
}

#[test]
fn another_ones_claim_is_joined_where_it_is() {
    let mut world = world(Sharing::Together);
    let (reply, proposal) = held(&mut world, "a", 1);
    assert_eq!(reply.target, target("w1"));
    let theirs = Version { seq: 4, writer: 99 };
    let claim = Binding { version: theirs, target: target("w3"), ..proposal.binding.clone() };
    claimed(&mut world, &proposal, claim);
    let again = world.route(route_request("a", 1, "A"), 0);
    assert_eq!((again.target, again.version, again.hold), (target("w3"), theirs, reply.hold));
    assert_eq!(world.state.worker(&worker_id("w1")).unwrap().load.requests(), 0, "it is there no more");
    // Committed by the other one, and told: one version, one slot.
    let told =
        Binding { version: theirs, target: target("w3"), expires_in_ms: Millis(1000), ..proposal.binding };
    world.apply(Command::Apply { writer: 1, bindings: vec![told] });
    let view = world.state.session(world.now, session("a").id).unwrap();
    assert_eq!((view.state, view.target, view.version), (SessionState::Bound, target("w3"), theirs));
}

#[test]
fn a_claim_ends_with_its_hold_unless_it_is_bound() {
    let mut world = world(Sharing::Together);
    let (_, proposal) = held(&mut world, "a", 1);
    claimed(&mut world, &proposal, proposal.binding.clone());
    let version = proposal.binding.version;
    assert_eq!(world.state.claims(SessionId(0), 10), (vec![(session("a").id, version)], None));
    let failed = Entry::Failed {
        session: session("a"),
        pool: super::world::pool(),
        request: RequestId(1),
        hold: Some(proposal.hold),
    };
    let report = |seq, entries| {
        Command::Report(routing::contract::Report {
            caller: caller("A"),
            seq,
            in_flight: Vec::new(),
            entries,
            upstream_role_missing: 0,
        })
    };
    let effects = world.effects(report(1, vec![failed]));
    assert!(effects.contains(&Effect::ClaimsOver(vec![(session("a").id, version)])), "{effects:?}");
    // Of a commit the binding's own merge ends it.
    let (reply, proposal) = held(&mut world, "b", 2);
    claimed(&mut world, &proposal, proposal.binding.clone());
    let committed = Entry::Committed {
        session: session("b"),
        pool: super::world::pool(),
        request: RequestId(2),
        hold: reply.hold,
        target: reply.target.unwrap(),
        version: reply.version,
    };
    let effects = world.effects(report(2, vec![committed]));
    assert!(effects.contains(&Effect::Recorded), "{effects:?}");
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::ClaimsOver(_))), "{effects:?}");
}

/// A claim at a slot that nobody can use here changes nothing but that all know: the turn goes on where it was told.
#[test]
fn a_claim_at_a_dead_slot_is_not_followed() {
    let mut world = world(Sharing::Together);
    world.play("probe w3 ---");
    let (reply, proposal) = held(&mut world, "a", 1);
    let claim = Binding { target: target("w3"), ..proposal.binding.clone() };
    claimed(&mut world, &proposal, claim);
    assert_eq!(world.route(route_request("a", 1, "A"), 0).target, reply.target);
}

/// Its own hold is over, the other one's may not be.
#[test]
fn another_ones_claim_is_not_given_up() {
    let mut world = world(Sharing::Together);
    let (_, proposal) = held(&mut world, "a", 1);
    let theirs = Version { seq: 4, writer: 99 };
    claimed(&mut world, &proposal, Binding { version: theirs, ..proposal.binding.clone() });
    let release = Command::ReleaseSession { id: session("a").id };
    let effects = world.effects(release);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::ClaimsOver(_))), "{effects:?}");
}

/// The store did not hear of the commit yet, and gives the next hold the claim of the one before.
#[test]
fn the_claim_of_a_hold_that_is_bound_is_not_taken_over() {
    let mut world = world(Sharing::Together);
    world.play("route a r1; commit a r1; show a");
    world.play("remove w1");
    let (reply, proposal) = held(&mut world, "a", 2);
    let bound = Version { seq: proposal.binding.version.seq - 1, ..proposal.binding.version };
    claimed(&mut world, &proposal, Binding { version: bound, ..proposal.binding.clone() });
    let again = world.route(route_request("a", 2, "A"), 0);
    assert_eq!((again.version, again.hold), (reply.version, reply.hold));
    assert!(matches!(world.state.claiming(session("a"), &again), Claiming::Propose(_)));
}

/// A request that is asked for again after its claim is neither in its own way nor an owner of what it was told first.
#[test]
fn what_is_asked_again_takes_its_first_answer_back() {
    let mut world = world(Sharing::Together);
    let (_, proposal) = held(&mut world, "a", 1);
    assert_eq!(world.state.worker(&worker_id("w1")).unwrap().load.requests(), 1);
    assert!(world.state.is_held(session("a").id, proposal.hold));
    world.play("probe w1 ---; probe w2 ---; probe w3 ---");
    assert_eq!(world.route(route_request("a", 1, "A"), 0).target, None);
    assert_eq!(world.state.worker(&worker_id("w1")).unwrap().load.requests(), 0);
    assert!(!world.state.is_held(session("a").id, proposal.hold));
}

/// What the store tells is older than what is known here: it was not told, or forgot.
#[test]
fn what_the_store_does_not_know_is_told_again() {
    let mut world = world(Sharing::Together);
    world.play("route a r1; commit a r1; route a r2");
    let position = world.state.position();
    let known = world.state.binding_of(world.now, session("a").id).unwrap();
    let older = Version { seq: 0, ..known.version };
    let told = vec![Binding { version: older, target: target("w3"), ..known.clone() }];
    let effects = world.effects(Command::Apply { writer: crate::state::STORE, bindings: told });
    assert!(effects.contains(&Effect::Recorded), "{effects:?}");
    let changes = world.state.changes(world.now, position, crate::state::STORE, 10);
    assert_eq!(changes.bindings, [known]);
}

/// Two replicas that tell each other everything need not begin again for it.
#[test]
fn what_the_store_told_makes_no_gap() {
    let mut world = World::new(Limits { journal_max: 2, ..Limits::SERVICE });
    world.play("worker w1; worker w2; worker w3");
    world.apply(Command::Sharing(Sharing::Together));
    world.play("route a r1; commit a r1");
    let position = world.state.position();
    let known = world.state.binding_of(world.now, session("a").id).unwrap();
    for name in ["b", "c", "d", "e"] {
        let bindings = vec![Binding { session: session(name), ..known.clone() }];
        world.apply(Command::Apply { writer: crate::state::STORE, bindings });
    }
    assert!(!world.state.changes(world.now, position, crate::state::STORE, 10).gap);
    world.play("route f r1; commit f r1; route g r1; commit g r1; route h r1; commit h r1");
    assert!(world.state.changes(world.now, position, crate::state::STORE, 10).gap, "own changes are missed");
}

/// Without the store every replica places a new session where the others would, whatever it knows of loads.
#[test]
fn apart_they_place_alike() {
    let (mut one, mut other) = (world(Sharing::Apart), world(Sharing::Apart));
    other.report("B", Vec::new(), vec![InFlight { target: target("w1").unwrap(), count: 50 }]);
    let mut slots = std::collections::BTreeSet::new();
    for n in 0..50 {
        let name = format!("s{n}");
        let (here, there) =
            (one.route(route_request(&name, n, "A"), 0), other.route(route_request(&name, n, "A"), 7));
        assert_eq!(here.target, there.target, "{name}");
        slots.insert(here.target);
    }
    assert_eq!(slots.len(), 3);
}

#[test]
fn loads_are_noted_once_and_again_after_a_while() {
    let (mut one, mut other) = (world(Sharing::Together), world(Sharing::Together));
    let in_flight = vec![InFlight { target: target("w1").unwrap(), count: 3 }];
    one.report("A", Vec::new(), in_flight.clone());
    let told = notes(&mut one);
    assert_eq!(told, [Note::Load { caller: caller("A"), seq: 1, in_flight }]);
    assert_eq!(notes(&mut one), []);
    for note in told.iter().chain(&told) {
        other.apply(Command::Note(Box::new(note.clone())));
    }
    let load = |world: &World| world.state.worker(&worker_id("w1")).unwrap().load.requests();
    assert_eq!((load(&one), load(&other)), (3, 3));
    assert_eq!(notes(&mut other), [], "who heard of it does not tell it on");
    // The VM reports to the other now: that one tells, and the older number changes nothing.
    other.report("A", Vec::new(), Vec::new());
    let newer = Note::Load { caller: caller("A"), seq: 2, in_flight: Vec::new() };
    other.apply(Command::Note(Box::new(told[0].clone())));
    one.apply(Command::Note(Box::new(newer)));
    assert_eq!(load(&one), 0);
    // Nothing changed, but its lease is to be renewed.
    one.report("B", Vec::new(), Vec::new());
    notes(&mut one);
    one.now += Millis(5000);
    one.report("B", Vec::new(), Vec::new());
    assert_eq!(notes(&mut one), [Note::Load { caller: caller("B"), seq: 2, in_flight: Vec::new() }]);
}

#[test]
fn a_dead_vm_and_response_ids_are_noted() {
    let (mut one, mut other) = (world(Sharing::Together), world(Sharing::Together));
    for world in [&mut one, &mut other] {
        world.apply(Command::Note(Box::new(Note::Load {
            caller: caller("X"),
            seq: 1,
            in_flight: vec![InFlight { target: target("w1").unwrap(), count: 2 }],
        })));
    }
    one.play("route a r1; commit a r1; alias answer a; gone X by=A");
    for note in notes(&mut one) {
        let text = serde_json::to_string(&note).unwrap();
        other.apply(Command::Note(Box::new(serde_json::from_str(&text).unwrap())));
    }
    assert_eq!(other.state.worker(&worker_id("w1")).unwrap().load.requests(), 0);
    assert_eq!(other.state.sizes().aliases, 1);
}

/// Its Envoy asked another replica meanwhile, and tells that one how the request ended.
#[test]
fn a_request_that_ends_at_another_replica_leaves_its_hold() {
    let (mut one, mut other) = (world(Sharing::Together), world(Sharing::Together));
    let (reply, proposal) = held(&mut one, "a", 1);
    claimed(&mut one, &proposal, proposal.binding.clone());
    one.route(route_request("b", 2, "A"), 0);
    let failed = |name, request, hold| Entry::Failed {
        session: session(name),
        pool: super::world::pool(),
        request: RequestId(request),
        hold,
    };
    // The second one was placed by its filter alone: it knows of no hold.
    other.report("A", vec![failed("a", 1, reply.hold), failed("b", 2, None)], Vec::new());
    let told: Vec<Note> = notes(&mut other).into_iter().filter(|n| matches!(n, Note::Ended(_))).collect();
    assert_eq!(told.len(), 2);
    let text = serde_json::to_string(&told[0]).unwrap();
    assert_eq!(serde_json::from_str::<Note>(&text).unwrap(), told[0]);
    let effects = one.effects(Command::Note(Box::new(told[0].clone())));
    assert!(effects.contains(&Effect::ClaimsOver(vec![(session("a").id, reply.version)])), "{effects:?}");
    assert_eq!(one.state.sizes().holds, 1);
    one.apply(Command::Note(Box::new(told[1].clone())));
    assert_eq!(one.state.sizes().holds, 0);
    assert_eq!(one.state.worker(&worker_id("w1")).unwrap().load.requests(), 0);
    assert!(notes(&mut one).iter().all(|note| !matches!(note, Note::Ended(_))), "it is not told on");
}

/// What was noted of that may be lost with the store: a hold does not live on other replicas' word that its VM does.
#[test]
fn who_asks_another_replica_owns_nothing_here_after_a_lease() {
    let mut world = world(Sharing::Together);
    let (_, proposal) = held(&mut world, "a", 1);
    claimed(&mut world, &proposal, proposal.binding.clone());
    let mut heard = |seq| {
        world.now += Millis(5000);
        let note = Note::Load { caller: caller("A"), seq, in_flight: Vec::new() };
        world.apply(Command::Note(Box::new(note)));
        let effects = world.effects(Command::Expire);
        (world.state.sizes().vms, world.state.sizes().holds, effects)
    };
    for seq in 1..=6 {
        assert_eq!(heard(seq), (1, 1, Vec::new()));
    }
    let version = proposal.binding.version;
    assert_eq!(heard(7), (1, 0, vec![Effect::ClaimsOver(vec![(session("a").id, version)])]));
}

#[test]
fn the_only_one_claims_and_notes_nothing() {
    let mut world = world(Sharing::Single);
    let effects = world.effects(Command::Apply { writer: 1, bindings: Vec::new() });
    assert_eq!(effects, []);
    let said = world.play("route a r1; commit a r1; alias answer a");
    assert!(said.contains("Bound"), "{said}");
    assert!(notes(&mut world).iter().all(|note| matches!(note, Note::Load { .. })));
}
