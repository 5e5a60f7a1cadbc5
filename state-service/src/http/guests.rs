//! Who is connected to a listener: how many there may be, who is quiet for how long, and who goes for one more.
//!
//! Knows no sockets and no HTTP beyond "a request began" and "it is answered".

use super::lines::Pace;
use crate::lock::lock;
use axum::http::Version;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How long one that was asked to go is waited for, before another one is asked.
const LEAVING: Duration = Duration::from_millis(100);
/// How often readers of long answers are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// From when a reader is told that it takes nothing, to when its connection is closed.
const GRACE: Duration = Duration::from_secs(1);

/// Places for a stated number of connections.
pub(super) struct Room {
    free: Arc<Semaphore>,
    guests: Mutex<Guests>,
}

#[derive(Default)]
struct Guests {
    next: u64,
    /// In the order they came.
    present: BTreeMap<u64, Arc<Guest>>,
}

/// A place in a room; dropping it leaves.
pub(super) struct Place {
    room: Arc<Room>,
    number: u64,
    guest: Arc<Guest>,
    _permit: OwnedSemaphorePermit,
}

/// One connection as the room sees it.
pub(super) struct Guest {
    doings: Mutex<Doings>,
    go: Notify,
    /// Long answers that are being read.
    reading: Mutex<Vec<Weak<Pace>>>,
    reads: Notify,
}

struct Doings {
    /// Requests that are not answered yet.
    open: usize,
    /// Whether there ever was one.
    asked: bool,
    /// Frames come outside of requests too.
    framed: bool,
    /// Since when nothing is asked.
    quiet_since: Instant,
    /// First byte of a head that is not complete.
    head_since: Option<Instant>,
}

/// A request that runs.
pub(super) struct Turn(Arc<Guest>);

impl Room {
    pub(super) fn new(places: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(places)), guests: Mutex::default() }
    }

    /// Takes a place; when there is none, asks the quietest to go.
    pub(super) async fn enter(self: &Arc<Self>) -> Place {
        loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
                return self.seat(permit);
            }
            if let Some(quietest) = self.quietest() {
                quietest.go.notify_one();
            }
            if let Ok(Ok(permit)) = timeout(LEAVING, Arc::clone(&self.free).acquire_owned()).await {
                return self.seat(permit);
            }
        }
    }

    fn seat(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Place {
        let guest = Arc::new(Guest::new());
        let mut guests = lock(&self.guests);
        guests.next += 1;
        let number = guests.next;
        guests.present.insert(number, Arc::clone(&guest));
        Place { room: Arc::clone(self), number, guest, _permit: permit }
    }

    /// Those who never asked anything go first, then those who asked nothing for longest; nobody who waits for an answer.
    fn quietest(&self) -> Option<Arc<Guest>> {
        let guests = lock(&self.guests);
        let quiet = guests.present.values().filter_map(|guest| Some((guest.quiet()?, guest)));
        quiet.min_by_key(|(quiet, _)| *quiet).map(|(_, guest)| Arc::clone(guest))
    }
}

impl Place {
    pub(super) const fn guest(&self) -> &Arc<Guest> {
        &self.guest
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.room.guests).present.remove(&self.number);
    }
}

impl Guest {
    fn new() -> Self {
        let doings =
            Doings { open: 0, asked: false, framed: false, quiet_since: Instant::now(), head_since: None };
        Self {
            doings: Mutex::new(doings),
            go: Notify::new(),
            reading: Mutex::default(),
            reads: Notify::new(),
        }
    }

    /// A request's head is complete.
    pub(super) fn begin(this: &Arc<Self>, version: Version) -> Turn {
        let mut doings = lock(&this.doings);
        doings.open += 1;
        doings.asked = true;
        doings.framed |= version == Version::HTTP_2;
        doings.head_since = None;
        drop(doings);
        Turn(Arc::clone(this))
    }

    /// Bytes came.
    pub(super) fn heard(&self) {
        let mut doings = lock(&self.doings);
        if doings.open == 0 && !doings.framed {
            doings.head_since.get_or_insert_with(Instant::now);
        }
    }

    /// A long answer begins.
    pub(super) fn reads(&self, pace: &Arc<Pace>) {
        let mut reading = lock(&self.reading);
        reading.retain(|pace| pace.strong_count() > 0);
        reading.push(Arc::downgrade(pace));
        self.reads.notify_one();
    }

    /// Ends when the connection should: a head does not come to its end, an answer is not taken, or the place is wanted.
    pub(super) async fn unwanted(&self, head_wait: Duration) {
        let overdue = async {
            loop {
                match self.head_awaited_since() {
                    Some(since) if since.elapsed() >= head_wait => return,
                    Some(since) => sleep_until(since + head_wait).await,
                    // A head that begins later is due later.
                    None => sleep(head_wait).await,
                }
            }
        };
        tokio::select! {
            () = overdue => {}
            () = self.taking_nothing() => {}
            () = self.go.notified() => {}
        }
    }

    async fn taking_nothing(&self) {
        loop {
            self.reads.notified().await;
            while self.is_reading() {
                sleep(LOOK).await;
                if lock(&self.reading).iter().filter_map(Weak::upgrade).any(|pace| pace.is_late(GRACE)) {
                    return;
                }
            }
        }
    }

    fn is_reading(&self) -> bool {
        lock(&self.reading).iter().any(|pace| pace.strong_count() > 0)
    }

    fn head_awaited_since(&self) -> Option<Instant> {
        let doings = lock(&self.doings);
        if doings.asked { doings.head_since } else { Some(doings.quiet_since) }
    }

    /// Whether it ever asked, and since when it asks nothing; `None` while it waits for an answer, or reads a long one.
    fn quiet(&self) -> Option<(bool, Instant)> {
        let reading = self.is_reading();
        let doings = lock(&self.doings);
        (doings.open == 0 && !reading).then_some((doings.asked, doings.quiet_since))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut doings = lock(&self.0.doings);
        doings.open = doings.open.saturating_sub(1);
        doings.quiet_since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::READER_WAIT;
    use super::*;

    fn room(places: usize) -> Arc<Room> {
        Arc::new(Room::new(places))
    }

    /// Sits until it is asked to go.
    fn sit(place: Place) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move { place.guest.unwanted(Duration::from_secs(10)).await })
    }

    #[tokio::test(start_paused = true)]
    async fn one_more_makes_the_quietest_go_and_nobody_who_is_served() {
        let room = room(3);
        let served = room.enter().await;
        let turn = Guest::begin(served.guest(), Version::HTTP_11);
        let idle = room.enter().await;
        drop(Guest::begin(idle.guest(), Version::HTTP_11));
        let (served, idle) = (sit(served), sit(idle));
        tokio::time::advance(Duration::from_secs(1)).await;
        let silent = sit(room.enter().await);
        let fourth = room.enter().await;
        drop(Guest::begin(fourth.guest(), Version::HTTP_11));
        let fourth = sit(fourth);
        silent.await.unwrap();
        assert!(!idle.is_finished() && !served.is_finished(), "silent ones go first, however late they came");
        let _fifth = room.enter().await;
        idle.await.unwrap();
        assert!(!fourth.is_finished() && !served.is_finished());
        drop(turn);
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_a_long_answer_is_not_quiet_and_goes_when_it_takes_nothing() {
        let (room, begun) = (room(1), Instant::now());
        let place = room.enter().await;
        let pace = Arc::new(Pace::new());
        drop(Guest::begin(place.guest(), Version::HTTP_11));
        place.guest().reads(&pace);
        let reader = sit(place);
        let next = tokio::spawn({
            let room = Arc::clone(&room);
            async move { room.enter().await }
        });
        tokio::time::sleep(READER_WAIT * 100).await;
        assert!(!next.is_finished() && !reader.is_finished(), "it reads, and takes what there is");
        pace.gave();
        reader.await.unwrap();
        let took = begun.elapsed() - READER_WAIT * 100;
        assert!(took >= READER_WAIT + GRACE && took <= READER_WAIT + GRACE + LOOK * 2, "{took:?}");
        drop(next.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn when_all_are_busy_one_waits_until_one_is_answered() {
        let room = room(1);
        let place = room.enter().await;
        let turn = Guest::begin(place.guest(), Version::HTTP_11);
        let only = sit(place);
        let next = tokio::spawn({
            let room = Arc::clone(&room);
            async move { room.enter().await }
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!next.is_finished() && !only.is_finished());
        drop(turn);
        drop(next.await.unwrap());
        only.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn heads_are_waited_for_and_idle_connections_are_not() {
        let wait = Duration::from_secs(10);
        let begun = Instant::now();
        let silent = Guest::new();
        silent.heard();
        silent.unwanted(wait).await;
        assert_eq!(begun.elapsed(), wait, "no first request");

        let (begun, idle) = (Instant::now(), Arc::new(Guest::new()));
        drop(Guest::begin(&idle, Version::HTTP_11));
        assert!(timeout(wait * 100, idle.unwanted(wait)).await.is_err(), "kept alive");
        idle.heard();
        idle.unwanted(wait).await;
        assert_eq!(begun.elapsed(), wait * 101, "a later head that stalls");

        let framed = Arc::new(Guest::new());
        drop(Guest::begin(&framed, Version::HTTP_2));
        framed.heard();
        assert!(timeout(wait * 100, framed.unwanted(wait)).await.is_err(), "a frame is no head");

        let busy = Arc::new(Guest::new());
        let _turn = Guest::begin(&busy, Version::HTTP_11);
        busy.heard();
        assert!(timeout(wait * 100, busy.unwanted(wait)).await.is_err(), "a body has its own limit");
    }
}
