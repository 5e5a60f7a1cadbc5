//! What was asked of this engine, for tests to look at. Bounded: the last 10,000 requests, and of their bodies
//! the last 128 MiB. Knows bytes as received; interprets nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hyper::HeaderMap;
use hyper::body::Bytes;
use sha2::{Digest, Sha256};

use crate::json::{Raw, object};
use crate::rank_header;

const REQUESTS_MAX: usize = 10_000;
const BODY_KEPT_BYTES_MAX: usize = 64 << 10;
const BODIES_KEPT_BYTES_MAX: usize = 128 << 20;
/// The header a rank is asked for with.
pub(crate) const RANK_HEADER: &str = "x-data-parallel-rank";

#[derive(Clone, Debug)]
struct Record {
    sequence: u64,
    method: String,
    path: String,
    headers: HeaderMap,
    body: Option<Bytes>,
    body_bytes: usize,
    body_sha256: [u8; 32],
    rank: Option<u32>,
    conversation: Option<String>,
    prompt_tokens: Option<usize>,
    cached_tokens: Option<usize>,
    status: Option<u16>,
}

#[derive(Default)]
struct Log {
    records: VecDeque<Record>,
    next: u64,
    kept_bytes: usize,
    /// Index of the first record whose body may still be kept.
    first_kept: u64,
}

/// The recorded requests, oldest first.
#[derive(Clone, Default)]
pub(crate) struct RequestLog {
    log: Arc<Mutex<Log>>,
}

/// A recorded request whose outcome is still to come.
#[derive(Clone)]
pub(crate) struct Outcome {
    log: RequestLog,
    sequence: u64,
}

impl RequestLog {
    /// Records a request as it was received.
    pub(crate) fn arrival(&self, method: &str, path: &str, headers: &HeaderMap, body: &Bytes) -> Outcome {
        let record = Record {
            sequence: 0,
            method: method.to_owned(),
            path: path.to_owned(),
            headers: headers.clone(),
            // A copy: the received bytes may be a view into a much larger buffer.
            body: (body.len() <= BODY_KEPT_BYTES_MAX).then(|| Bytes::copy_from_slice(body)),
            body_bytes: body.len(),
            body_sha256: Sha256::digest(body).into(),
            rank: None,
            conversation: None,
            prompt_tokens: None,
            cached_tokens: None,
            status: None,
        };
        let sequence = self.lock().push(record);
        Outcome { log: self.clone(), sequence }
    }

    pub(crate) fn clear(&self) {
        let mut log = self.lock();
        log.records.clear();
        (log.kept_bytes, log.first_kept) = (0, log.next);
    }

    /// The JSON of `GET /control/requests`.
    pub(crate) fn listing(&self) -> Raw {
        // A copy, so that encoding bodies holds nobody up.
        let records: Vec<Record> = self.lock().records.iter().cloned().collect();
        object! { "requests": records.iter().map(Record::json).collect::<Vec<_>>() }
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn push(&mut self, mut record: Record) -> u64 {
        let sequence = self.next;
        self.next += 1;
        record.sequence = sequence;
        self.kept_bytes += record.body.as_ref().map_or(0, Bytes::len);
        self.records.push_back(record);
        while self.records.len() > REQUESTS_MAX {
            let gone = self.records.pop_front().and_then(|record| record.body);
            self.kept_bytes -= gone.map_or(0, |body| body.len());
        }
        while self.kept_bytes > BODIES_KEPT_BYTES_MAX {
            let first = self.first_kept;
            self.first_kept += 1;
            let body = self.find(first).and_then(|record| record.body.take());
            self.kept_bytes -= body.map_or(0, |body| body.len());
        }
        sequence
    }

    fn find(&mut self, sequence: u64) -> Option<&mut Record> {
        let first = self.records.front()?.sequence;
        self.records.get_mut(usize::try_from(sequence.checked_sub(first)?).ok()?)
    }
}

impl Outcome {
    /// The rank that serves.
    pub(crate) fn rank(&self, rank: u32) {
        self.change(|record| record.rank = Some(rank));
    }

    /// The conversation that chose the rank.
    pub(crate) fn conversation(&self, id: String) {
        self.change(|record| record.conversation = Some(id));
    }

    /// Adds a prompt's tokens; a request may have several prompts.
    pub(crate) fn prompt(&self, tokens: usize, cached: usize) {
        self.change(|record| {
            record.prompt_tokens = Some(record.prompt_tokens.unwrap_or(0) + tokens);
            record.cached_tokens = Some(record.cached_tokens.unwrap_or(0) + cached);
        });
    }

    /// The status sent.
    pub(crate) fn status(&self, status: u16) {
        self.change(|record| record.status = Some(status));
    }

    fn change(&self, change: impl FnOnce(&mut Record)) {
        if let Some(record) = self.log.lock().find(self.sequence) {
            change(record);
        }
    }
}

impl Record {
    /// What the body says of a rank, under either name SGLang has for it, as text; the last of several.
    fn rank_in_body(&self) -> Option<String> {
        let fields: crate::ask::Fields = serde_json::from_slice(self.body.as_ref()?).ok()?;
        let named = |name: &str| fields.get(name).map(|value| format!("{name}={value}"));
        named("routed_dp_rank").or_else(|| named("data_parallel_rank"))
    }

    fn json(&self) -> Raw {
        let latin1 = |value: &[u8]| value.iter().map(|&byte| char::from(byte)).collect::<String>();
        let headers: Vec<[String; 2]> = self
            .headers
            .iter()
            .map(|(name, value)| [name.as_str().to_owned(), latin1(value.as_bytes())])
            .collect();
        let rank_value = self.headers.get(RANK_HEADER).map(|value| value.as_bytes());
        let digest: String = self.body_sha256.iter().map(|byte| format!("{byte:02x}")).collect();
        object! {
            "sequence": self.sequence, "method": self.method, "path": self.path, "headers": headers,
            "body_sha256": digest, "body_bytes": self.body_bytes,
            "body_base64": self.body.as_ref().map(|body| BASE64_STANDARD.encode(body)),
            "rank_header": rank_value.map(latin1),
            "rank_header_int": rank_value.and_then(rank_header::python_int),
            "rank_in_body": self.rank_in_body(),
            "rank": self.rank, "conversation": self.conversation, "prompt_tokens": self.prompt_tokens, "cached_tokens": self.cached_tokens,
            "status": self.status,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(log: &RequestLog, count: usize, body: &Bytes) {
        for _ in 0..count {
            log.arrival("POST", "/x", &HeaderMap::new(), body);
        }
    }

    #[test]
    fn keeps_the_last_ten_thousand() {
        let log = RequestLog::default();
        let early = log.arrival("POST", "/first", &HeaderMap::new(), &Bytes::new());
        fill(&log, REQUESTS_MAX, &Bytes::new());
        early.status(200);
        let inner = log.lock();
        assert_eq!((inner.records.len(), inner.records[0].sequence), (REQUESTS_MAX, 1));
    }

    #[test]
    fn keeps_no_more_bodies_than_its_bound() {
        let log = RequestLog::default();
        let body = Bytes::from(vec![b'a'; BODY_KEPT_BYTES_MAX]);
        let fit = BODIES_KEPT_BYTES_MAX / BODY_KEPT_BYTES_MAX;
        fill(&log, fit + 5, &body);
        let inner = log.lock();
        assert_eq!(inner.records.iter().filter(|record| record.body.is_none()).count(), 5);
        assert!(inner.kept_bytes <= BODIES_KEPT_BYTES_MAX);
    }

    #[test]
    fn large_bodies_leave_their_hash_and_clearing_keeps_counting() {
        let log = RequestLog::default();
        fill(&log, 1, &Bytes::from(vec![0; BODY_KEPT_BYTES_MAX + 1]));
        assert!(log.listing().0.contains(r#""body_base64":null"#));
        log.clear();
        assert_eq!(log.listing().0, r#"{"requests":[]}"#);
        let outcome = log.arrival("POST", "/x", &HeaderMap::new(), &Bytes::from_static(b"{}"));
        outcome.prompt(3, 2);
        outcome.prompt(4, 0);
        assert_eq!(outcome.sequence, 1);
        assert!(log.listing().0.contains(r#""prompt_tokens":7,"cached_tokens":2"#));
    }
}
