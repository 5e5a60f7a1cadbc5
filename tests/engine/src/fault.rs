//! Faults on demand: which there are, how they are named, which request gets one. Does not carry them out.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::{Method, StatusCode};
use serde::Deserialize;

/// Request header that asks for a fault on that request alone.
pub(crate) const FAULT_HEADER: &str = "x-fake-fault";
/// Faults waiting at once.
const FAULTS_MAX: usize = 64;

/// A way to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `slow=MS`: the head comes late.
    Slow(Duration),
    /// `500`, `502`, `504`: a failure said at once.
    Failure(StatusCode),
    /// `503`, `503-retry-after=SECONDS`
    Unavailable { retry_after_s: Option<u64> },
    /// `429=SECONDS`
    TooManyRequests { retry_after_s: u64 },
    /// `reset`: TCP RST instead of a head.
    Reset,
    /// `hang`: no answer, until the client goes away.
    Hang,
    /// `die-mid-stream`: a head, some of the body, TCP RST.
    DieMidStream,
    /// `health-hang`: `/health` hangs.
    HealthHang,
    /// `health-503`: `/health` is 503.
    HealthUnavailable,
}

impl Fault {
    /// Reads a fault's name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some((name, number)) = text.split_once('=') {
            let number: u64 = number.parse().ok()?;
            return match name {
                "slow" => Some(Self::Slow(Duration::from_millis(number))),
                "503-retry-after" => Some(Self::Unavailable { retry_after_s: Some(number) }),
                "429" => Some(Self::TooManyRequests { retry_after_s: number }),
                _ => None,
            };
        }
        match text {
            "500" => Some(Self::Failure(StatusCode::INTERNAL_SERVER_ERROR)),
            "502" => Some(Self::Failure(StatusCode::BAD_GATEWAY)),
            "504" => Some(Self::Failure(StatusCode::GATEWAY_TIMEOUT)),
            "503" => Some(Self::Unavailable { retry_after_s: None }),
            "reset" => Some(Self::Reset),
            "hang" => Some(Self::Hang),
            "die-mid-stream" => Some(Self::DieMidStream),
            "health-hang" => Some(Self::HealthHang),
            "health-503" => Some(Self::HealthUnavailable),
            _ => None,
        }
    }

    fn is_for_health(self) -> bool {
        matches!(self, Self::HealthHang | Self::HealthUnavailable)
    }
}

/// The body of `POST /control/fault`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FaultOrder {
    pub(crate) fault: String,
    /// How many requests get it; without a number all, until cleared.
    #[serde(default)]
    pub(crate) times: Option<u64>,
    /// Only this path; without one every POST.
    #[serde(default)]
    pub(crate) path: Option<String>,
}

/// An ordered fault and how often it is still due.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) order: FaultOrder,
    fault: Fault,
}

/// The faults ordered and not yet used up; the first that fits a request is taken.
#[derive(Default)]
pub(crate) struct FaultBoard {
    standing: Mutex<Vec<Standing>>,
}

impl FaultBoard {
    /// Adds a fault.
    ///
    /// # Errors
    /// A sentence for the caller: an unknown name, or too many at once.
    pub(crate) fn order(&self, order: FaultOrder) -> Result<(), String> {
        let fault = Fault::parse(&order.fault).ok_or_else(|| format!("unknown fault {:?}", order.fault))?;
        let mut standing = self.lock();
        if standing.len() >= FAULTS_MAX {
            return Err(format!("{FAULTS_MAX} faults stand already"));
        }
        standing.push(Standing { order, fault });
        Ok(())
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    pub(crate) fn standing(&self) -> Vec<Standing> {
        self.lock().clone()
    }

    /// Takes the fault due to a request that is neither control nor health.
    pub(crate) fn take(&self, method: &Method, path: &str) -> Option<Fault> {
        self.take_first(|standing| match &standing.order.path {
            _ if standing.fault.is_for_health() => false,
            Some(wanted) => wanted == path,
            None => method == Method::POST,
        })
    }

    /// Takes the fault due to a health check.
    pub(crate) fn take_for_health(&self) -> Option<Fault> {
        self.take_first(|standing| standing.fault.is_for_health())
    }

    fn take_first(&self, fits: impl Fn(&Standing) -> bool) -> Option<Fault> {
        let mut standing = self.lock();
        let at = standing.iter().position(|one| one.order.times != Some(0) && fits(one))?;
        let fault = standing[at].fault;
        match &mut standing[at].order.times {
            Some(1) => drop(standing.remove(at)),
            Some(times) => *times -= 1,
            None => {}
        }
        Some(fault)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Standing>> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(fault: &str, times: Option<u64>, path: Option<&str>) -> FaultOrder {
        FaultOrder { fault: fault.to_owned(), times, path: path.map(str::to_owned) }
    }

    #[test]
    fn names() {
        assert_eq!(Fault::parse("slow=250"), Some(Fault::Slow(Duration::from_millis(250))));
        assert_eq!(Fault::parse("503-retry-after=2"), Some(Fault::Unavailable { retry_after_s: Some(2) }));
        assert_eq!(Fault::parse("429=1"), Some(Fault::TooManyRequests { retry_after_s: 1 }));
        for wrong in ["", "slow", "slow=x", "slow=-1", "404", "429", "Reset"] {
            assert_eq!(Fault::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn used_up_after_its_times_and_only_where_it_fits() {
        let board = FaultBoard::default();
        board.order(order("500", Some(2), Some("/v1/completions"))).unwrap();
        board.order(order("reset", None, None)).unwrap();
        let take = |method, path| board.take(&method, path);
        assert_eq!(take(Method::GET, "/v1/models"), None);
        assert_eq!(take(Method::POST, "/v1/chat/completions"), Some(Fault::Reset));
        assert_eq!(
            take(Method::POST, "/v1/completions"),
            Some(Fault::Failure(StatusCode::INTERNAL_SERVER_ERROR))
        );
        assert_eq!(
            take(Method::POST, "/v1/completions"),
            Some(Fault::Failure(StatusCode::INTERNAL_SERVER_ERROR))
        );
        assert_eq!(take(Method::POST, "/v1/completions"), Some(Fault::Reset));
        assert_eq!(board.take_for_health(), None);
        board.clear();
        assert_eq!(take(Method::POST, "/v1/completions"), None);
    }

    #[test]
    fn bounded_and_named() {
        let board = FaultBoard::default();
        assert!(board.order(order("404", None, None)).is_err());
        for _ in 0..FAULTS_MAX {
            board.order(order("hang", None, None)).unwrap();
        }
        assert!(board.order(order("hang", None, None)).is_err());
    }
}
