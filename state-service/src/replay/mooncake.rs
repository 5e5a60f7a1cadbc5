//! Mooncake's traces: a request a line, `{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [..]}`. Ids name blocks
//! of 512 tokens together with what comes before, over the whole trace. Nothing names a session.

use super::read::{Lines, Problem, full_blocks, json, millis, room};
use super::trace::{Content, PROMPT_BLOCKS_MAX, Request, Session, Trace};
use serde::Deserialize;

/// Tokens of a block; the trace does not say.
pub(super) const BLOCK_SIZE: u32 = 512;

/// Keeps nothing from line to line.
pub(super) struct Reader;

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

impl Lines for Reader {
    fn take(&mut self, number: usize, line: &[u8], trace: &mut Option<Trace>) -> Result<(), Problem> {
        let line: Line = json(line)?;
        let trace = trace.get_or_insert_with(|| Trace::new(BLOCK_SIZE));
        room(trace)?;
        if line.hash_ids.len() > PROMPT_BLOCKS_MAX {
            return Err(format!("more than {PROMPT_BLOCKS_MAX} hash_ids"));
        }
        let full = full_blocks("hash_ids", line.hash_ids.len(), line.input_length, BLOCK_SIZE)?;
        let mut leaf = None;
        for id in line.hash_ids.iter().take(full) {
            leaf = Some(trace.forest.after(leaf, Content(*id))?);
        }
        let at = millis("timestamp", line.timestamp, 1.0)?;
        let listed = u32::try_from(line.hash_ids.len()).unwrap_or(u32::MAX);
        let first = trace.requests.len();
        let (tokens, output) = (line.input_length, line.output_length);
        trace.requests.push(Request { at, leaf, listed, tokens, output });
        trace.sessions.push(Session { key: None, requests: first..first + 1, line: number });
        Ok(())
    }
}
