//! What a service says of the traffic: messages it refused, sessions as it has them, requests in flight. Asks only what the earlier
//! version answers as well.

use std::collections::BTreeMap;

use anyhow::Result;
use e2e::{Service, wait_for};

use crate::traffic::{LONG, Seen, long};

/// Answers to filters and Envoys that say no, by path and status.
pub(crate) async fn refused(service: &Service) -> Result<BTreeMap<String, u64>> {
    let url = format!("http://{}/metrics", service.control());
    let text = reqwest::Client::builder().no_proxy().build()?.get(url).send().await?.text().await?;
    Ok(refusals(&text))
}

fn refusals(text: &str) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (what, count) in text.lines().filter_map(refusal) {
        *all.entry(what).or_default() += count;
    }
    all
}

/// One line of it.
fn refusal(line: &str) -> Option<(String, u64)> {
    const DATA: &str = "rankpin_http_requests_total{listener=\"data\",";
    let (labels, count) = line.strip_prefix(DATA)?.rsplit_once("} ")?;
    let value = |name: &str| labels.split(',').find_map(|one| one.strip_prefix(name)?.strip_suffix('"'));
    let (path, status) = (value("path=\"")?, value("status=\"")?);
    let count = count.parse().ok()?;
    status.starts_with(['4', '5']).then(|| (format!("{path} {status}"), count))
}

/// Long conversations that the service has bound just where they go; waits until it has all of them, for as long as a wait may take.
pub(crate) async fn known(service: &Service, seen: impl Fn() -> Seen) -> Result<usize> {
    let mut agreeing = 0;
    let all = wait_for("the service to know every conversation", async || {
        agreeing = agree(service, &seen()).await.ok()?;
        (agreeing == LONG).then_some(())
    });
    // What was seen last is told, whether or not it was enough.
    let _ = all.await;
    Ok(agreeing)
}

async fn agree(service: &Service, seen: &Seen) -> Result<usize> {
    let mut agreeing = 0;
    for nth in 0..LONG {
        let key = long(nth);
        let said = service.session(&key).await?;
        let Some(slot) = seen.slots.get(&key) else { continue };
        let target = &said.body["target"];
        // A worker of one rank is bound without one.
        let rank = target["rank"].as_u64();
        let same_rank = rank.is_none() || rank == slot.rank.map(u64::from);
        agreeing +=
            usize::from(said.body["state"] == "bound" && target["worker"] == slot.worker && same_rank);
    }
    Ok(agreeing)
}

/// Requests in flight on each worker once nobody sends any, after the last reports.
pub(crate) async fn left_in_flight(service: &Service, workers: &[&str]) -> Result<Vec<u64>> {
    let mut last = Vec::new();
    let none = wait_for("no request in flight", async || {
        last.clear();
        for worker in workers {
            last.push(service.in_flight(worker).await.ok()?);
        }
        last.iter().all(|count| *count == 0).then_some(())
    });
    // As above.
    let _ = none.await;
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_data_listeners_refusals_are_counted() {
        let text = "# HELP x y\n\
            rankpin_http_requests_total{listener=\"data\",path=\"/v1/report\",method=\"POST\",status=\"204\"} 7\n\
            rankpin_http_requests_total{listener=\"data\",path=\"/v1/report\",method=\"POST\",status=\"400\"} 2\n\
            rankpin_http_requests_total{listener=\"data\",path=\"/v1/watch\",method=\"GET\",status=\"503\"} 1\n\
            rankpin_http_requests_total{listener=\"control\",path=\"/v1/workers\",method=\"GET\",status=\"404\"} 9\n";
        let expected = [("/v1/report 400".to_owned(), 2), ("/v1/watch 503".to_owned(), 1)];
        assert_eq!(refusals(text), BTreeMap::from(expected));
    }
}
