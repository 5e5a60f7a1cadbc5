//! A process as the kernel counts it: CPU time, memory, the cores it may run on. Linux only; knows nothing of what runs.

use std::fs;

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Which core is Envoy's and which is everything else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cores {
    /// Envoy alone on one, the load, the workers and the service on another.
    Apart { envoy: usize, others: usize },
    /// There is but one, or the system does not let us choose.
    Shared,
}

impl Cores {
    /// Puts this process, and so all it starts, on the core that is not Envoy's.
    pub(crate) fn claim() -> Self {
        let Ok(allowed) = sched_getaffinity(None) else { return Self::Shared };
        let mut usable = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        match (usable.next(), usable.next()) {
            (Some(envoy), Some(others)) if sched_setaffinity(None, &only(others)).is_ok() => {
                Self::Apart { envoy, others }
            }
            _ => Self::Shared,
        }
    }

    /// Puts every thread of an Envoy on its core; threads it starts later inherit it.
    ///
    /// # Errors
    /// The process is gone.
    pub(crate) fn give_to_envoy(self, pid: u32) -> Result<()> {
        let Self::Apart { envoy, .. } = self else { return Ok(()) };
        for task in fs::read_dir(format!("/proc/{pid}/task")).context("Envoy is gone")? {
            let id: i32 = task?.file_name().to_string_lossy().parse()?;
            // A thread that ended meanwhile needs no core.
            let _ = sched_setaffinity(Pid::from_raw(id), &only(envoy));
        }
        Ok(())
    }

    /// For the reader of the figures.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Apart { envoy, others } => {
                format!("Envoy on core {envoy}; load, workers and service on core {others}")
            }
            Self::Shared => "Envoy, load, workers and service share their cores: expect noise".to_owned(),
        }
    }
}

fn only(core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(core);
    set
}

/// CPU time of a process so far, user and system, in microseconds: of its living threads by the scheduler's nanoseconds, else by
/// `utime + stime`, whose resolution is a tick (10 ms).
///
/// # Errors
/// The process is gone.
pub(crate) fn cpu_us(pid: u32) -> Result<f64> {
    if let Some(nanoseconds) = scheduled_ns(pid) {
        return Ok(nanoseconds as f64 / 1e3);
    }
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).context("the process is gone")?;
    let ticks = ticks(&text).with_context(|| format!("cannot read {text:?}"))?;
    Ok(ticks as f64 * 1e6 / rustix::param::clock_ticks_per_second() as f64)
}

/// Sum over the threads; none where the kernel does not count it.
fn scheduled_ns(pid: u32) -> Option<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        // A thread that ended since its name was read counts no more.
        let Ok(text) = fs::read_to_string(task.ok()?.path().join("schedstat")) else { continue };
        sum += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    (sum > 0).then_some(sum)
}

/// `utime + stime`: fields 14 and 15, counted after the name, which may hold anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Resident memory of a process in bytes.
///
/// # Errors
/// The process is gone.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).context("the process is gone")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().context("VmRSS is no number")?;
    Ok(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_brackets_hides_no_field() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 31 11 0 0 20";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks("7 (cut"), None);
    }

    #[test]
    fn this_process_has_memory_and_a_clock() {
        let own = std::process::id();
        assert!(resident_bytes(own).unwrap() > 100_000);
        cpu_us(own).unwrap();
        assert!(cpu_us(u32::MAX).is_err());
    }
}
