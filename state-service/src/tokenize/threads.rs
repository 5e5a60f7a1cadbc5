//! Threads that tokenise, so that no request's work holds up the runtime. A fixed number, one bounded queue; a job that panics
//! ends alone. Knows no job.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

/// Jobs that wait; one more is refused.
pub const QUEUE_MAX: usize = 256;
/// Threads on the largest machine.
pub const THREADS_MAX: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

/// The threads of a process; they end when this is dropped, after the job at hand.
pub struct Threads {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

/// All places of the queue are taken.
#[derive(Debug)]
pub struct Full;

impl Threads {
    /// As many as the machine has cores, but not all of a large one.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start() -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self::with(cores.min(THREADS_MAX))
    }

    /// `count` threads.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn with(count: usize) -> io::Result<Self> {
        let threads = Self { shared: Arc::default() };
        for number in 0..count {
            let shared = Arc::clone(&threads.shared);
            thread::Builder::new().name(format!("tokens-{number}")).spawn(move || work(&shared))?;
        }
        Ok(threads)
    }

    /// Puts a job behind the others.
    ///
    /// # Errors
    /// [`Full`]: the job is dropped.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Full> {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.jobs.len() >= QUEUE_MAX {
            return Err(Full);
        }
        queue.jobs.push_back(Box::new(job));
        drop(queue);
        self.shared.ready.notify_one();
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.closed = true;
        queue.jobs.clear();
        drop(queue);
        self.shared.ready.notify_all();
    }
}

fn work(shared: &Shared) {
    while let Some(job) = next(shared) {
        // Whoever waits for it sees its reply dropped.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

fn next(shared: &Shared) -> Option<Job> {
    let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if queue.closed {
            return None;
        }
        if let Some(job) = queue.jobs.pop_front() {
            return Some(job);
        }
        queue = shared.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}
