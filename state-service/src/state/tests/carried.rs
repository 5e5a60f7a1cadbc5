//! What one replica's requests load slots with, at another one: it counts there, and no longer than its replica lives.

use super::kv::{Kv, tokens};
use crate::state::{Command, Note, Reply, Sharing};
use routing::contract::{Entry, RouteReply};
use routing::id::RequestId;
use routing::time::Millis;

const WORKERS: &str = "worker w0 ranks=0..2; worker w1 ranks=0..2";

fn notes(kv: &mut Kv) -> Vec<Note> {
    let Reply::Notes(notes) = kv.world.apply(Command::TakeNotes) else { panic!() };
    notes.into_iter().filter(|note| matches!(note, Note::Carried { .. })).collect()
}

fn hears(kv: &mut Kv, notes: &[Note]) {
    for note in notes {
        kv.world.apply(Command::Note(Box::new(note.clone())));
    }
}

fn place(reply: &RouteReply) -> (String, u32) {
    let target = reply.target.clone().unwrap();
    (target.worker.to_string(), target.rank.unwrap().0)
}

/// Other replicas' numbers are other than ours.
fn by(replica: u64, notes: Vec<Note>) -> Vec<Note> {
    let of = |note| match note {
        Note::Carried { seq, slots, .. } => Note::Carried { replica, seq, slots },
        other => other,
    };
    notes.into_iter().map(of).collect()
}

/// Three prompts at one replica; all four slots but one carry one. Where the other one places the next.
fn three_booked() -> (Kv, Vec<Note>, (String, u32)) {
    let mut one = Kv::new(WORKERS);
    let mut free: Vec<(String, u32)> =
        ["w0", "w1"].into_iter().flat_map(|w| [(w.to_owned(), 0), (w.to_owned(), 1)]).collect();
    for name in 1..=3 {
        let at = place(&one.loose(&tokens(name, 1600)));
        free.retain(|slot| *slot != at);
    }
    assert_eq!(free.len(), 1, "each went to a slot of its own");
    let told = notes(&mut one);
    (one, told, free.remove(0))
}

#[test]
fn what_another_replica_placed_counts_until_it_ends() {
    let (mut one, told, free) = three_booked();
    let mut other = Kv::new(WORKERS);
    hears(&mut other, &by(1, told.clone()));
    // Again, and in the wrong order: absolute numbers stay what they are.
    hears(&mut other, &by(1, told));
    for name in 11..=14 {
        let reply = other.loose(&tokens(name, 16));
        assert_eq!(place(&reply), free, "the only slot that nobody loads");
        let request = other.requests;
        other.end(request);
    }
    assert_eq!(notes(&mut one), [], "nothing changed");
    for request in 1001..=1003 {
        one.end(request);
    }
    let over = notes(&mut one);
    let Some(Note::Carried { slots, .. }) = over.first() else { panic!("{over:?}") };
    assert_eq!(slots.iter().map(|slot| (slot.requests, slot.prefill)).collect::<Vec<_>>(), [(0, 0); 3]);
    hears(&mut other, &by(1, over));
    assert!(spread(&mut other) > 1, "all slots are idle again");
}

/// To how many slots as many small prompts go as there are slots, each ended before the next.
fn spread(kv: &mut Kv) -> usize {
    let mut seen = std::collections::BTreeSet::new();
    for name in 100..140 {
        seen.insert(place(&kv.loose(&tokens(name, 16))));
        let request = kv.requests;
        kv.world.report("A", vec![Entry::Ended { request: RequestId(request) }], Vec::new());
    }
    seen.len()
}

#[test]
fn a_dead_replicas_share_goes_with_its_lease_and_a_live_ones_is_told_again() {
    let (mut one, told, _) = three_booked();
    let mut other = Kv::new(WORKERS);
    hears(&mut other, &by(1, told));
    assert_eq!(spread(&mut other), 1);
    let pass = |kv: &mut Kv, ms| {
        kv.world.now += Millis(ms);
        kv.world.report("A", Vec::new(), Vec::new());
        kv.world.apply(Command::Expire);
    };
    pass(&mut one, 5000);
    let again = notes(&mut one);
    assert_eq!(again.len(), 1, "told again though nothing changed");
    pass(&mut other, 14_000);
    hears(&mut other, &by(1, again));
    for _ in 0..7 {
        pass(&mut other, 2000);
    }
    assert_eq!(spread(&mut other), 1, "28 s after the first note, 14 s after the second");
    pass(&mut other, 1001);
    assert!(spread(&mut other) > 1, "its lease is over");
}

#[test]
fn an_older_share_that_comes_late_changes_nothing() {
    let (mut one, told, _) = three_booked();
    for request in 1001..=1003 {
        one.end(request);
    }
    let over = notes(&mut one);
    let mut other = Kv::new(WORKERS);
    hears(&mut other, &by(1, over));
    hears(&mut other, &by(1, told.clone()));
    assert!(spread(&mut other) > 1);
    // Another replica's numbers are its own.
    hears(&mut other, &by(2, told));
    assert_eq!(spread(&mut other), 1);
}

/// Its Envoy asks another replica by then: that one tells on, once, whose request is over.
#[test]
fn a_prompt_that_is_over_at_another_replica_is_free() {
    let (mut one, mut other) = (Kv::new(WORKERS), Kv::new(WORKERS));
    for kv in [&mut one, &mut other] {
        kv.world.apply(Command::Sharing(Sharing::Together));
    }
    one.loose(&tokens(1, 1600));
    let request = one.requests;
    other.end(request);
    let freed = |kv: &mut Kv| -> Vec<Note> {
        let Reply::Notes(notes) = kv.world.apply(Command::TakeNotes) else { panic!() };
        notes.into_iter().filter(|note| matches!(note, Note::Freed { .. })).collect()
    };
    let told = freed(&mut other);
    assert_eq!(told.len(), 1);
    let text = serde_json::to_string(&told).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Note>>(&text).unwrap(), told);
    let carries = |kv: &mut Kv| match notes(kv).as_slice() {
        [Note::Carried { slots, .. }] => slots.iter().map(|slot| slot.requests).sum::<u64>(),
        notes => panic!("{notes:?}"),
    };
    assert_eq!(carries(&mut one), 1);
    hears(&mut one, &told);
    assert_eq!(carries(&mut one), 0);
    hears(&mut one, &told);
    assert_eq!((freed(&mut one), freed(&mut other)), (vec![], vec![]), "it is not told on");
}
