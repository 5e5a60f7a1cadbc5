//! Weka's trace of coding agents as prompts to send: a session a line, sub-agents sessions by themselves. Its blocks of 64 tokens are
//! folded, [`FOLD`] to one, so that a machine of two cores can serve what took a cluster. Knows no time but the trace's.
//!
//! Ids mean something within a line only; what sessions share are the blocks of their first `tool_tokens + system_tokens` tokens, where
//! these two are equal (as `rankpin replay` has it). A folded block is told by all that stands before it, so an id is a whole prefix.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use flate2::read::MultiGzDecoder;
use serde::Deserialize;

/// Blocks of the trace that become one of ours.
pub(crate) const FOLD: usize = 16;
/// Marks a block that several sessions may have.
const SHARED: u32 = 1 << 31;
/// Longest line.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// Prompts of sessions.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub(crate) sessions: Vec<Vec<Turn>>,
}

/// One request.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Seconds since its session's first one.
    pub(crate) at: f64,
    /// Its full blocks.
    pub(crate) blocks: Vec<Block>,
}

/// A block with all that stands before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Block(u32);

impl Block {
    /// Its two tokens. A session that is played again is another conversation (`pass`) with the same beginning.
    pub(crate) fn tokens(self, pass: u32) -> [u32; 2] {
        if self.0 & SHARED == 0 { [self.0, 1 + pass] } else { [self.0 & !SHARED, 0] }
    }
}

#[derive(Deserialize)]
struct Line {
    block_size: usize,
    #[serde(default)]
    tool_tokens: usize,
    #[serde(default)]
    system_tokens: usize,
    requests: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    t: f64,
    hash_rle: Option<Vec<(u64, u64)>>,
    #[serde(default)]
    tool_tokens: usize,
    #[serde(default)]
    system_tokens: usize,
    requests: Option<Vec<Item>>,
}

/// What stands before a session's first message, in tokens.
#[derive(Clone, Copy)]
struct Opening {
    tools: usize,
    system: usize,
}

/// Blocks by what they are and what stands before them.
#[derive(Default)]
struct Reader {
    known: HashMap<(u32, u64), u32>,
    ids: Vec<u64>,
}

/// Reads a trace, plain or gzipped.
///
/// # Errors
/// It is not there, or not of its format.
pub(crate) fn read(path: &Path) -> Result<Trace> {
    let file = File::open(path).with_context(|| format!("no trace at {}", path.display()))?;
    let gzipped = path.extension().is_some_and(|end| end == "gz");
    let from: Box<dyn Read> = if gzipped { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let (mut from, mut line, mut number) = (BufReader::new(from), Vec::new(), 0_u64);
    let (mut trace, mut reader) = (Trace::default(), Reader::default());
    loop {
        line.clear();
        if (&mut from).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        number += 1;
        let read = serde_json::from_slice(&line).map_err(anyhow::Error::from);
        let took = read.and_then(|line| reader.line(number, &line, &mut trace));
        took.with_context(|| format!("{}: line {number}", path.display()))?;
    }
    ensure!(!trace.sessions.is_empty(), "{}: no sessions", path.display());
    Ok(trace)
}

impl Reader {
    fn line(&mut self, number: u64, line: &Line, trace: &mut Trace) -> Result<()> {
        ensure!((1..=4096).contains(&line.block_size), "block_size {}", line.block_size);
        let own = line.requests.iter().filter(|item| item.requests.is_none());
        let opening = Opening { tools: line.tool_tokens, system: line.system_tokens };
        let session = self.session((number, line.block_size), opening, own)?;
        trace.sessions.extend(session);
        for agent in &line.requests {
            let Some(requests) = &agent.requests else { continue };
            let opening = Opening { tools: agent.tool_tokens, system: agent.system_tokens };
            let session = self.session((number, line.block_size), opening, requests.iter())?;
            trace.sessions.extend(session);
        }
        Ok(())
    }

    fn session<'a>(
        &mut self,
        (line, block_size): (u64, usize),
        opening: Opening,
        items: impl Iterator<Item = &'a Item>,
    ) -> Result<Option<Vec<Turn>>> {
        let mut turns: Vec<Turn> = Vec::new();
        let (mut first, mut began, mut before) = (Vec::new(), 0.0, Vec::new());
        for item in items {
            expand(item.hash_rle.as_deref().context("a request without hash_rle")?, &mut self.ids)?;
            if turns.is_empty() {
                began = item.t;
                let shared = (opening.tools + opening.system) / block_size;
                first = self.ids.iter().take(shared).copied().collect();
            }
            let same = before.iter().zip(&self.ids).take_while(|(one, other)| one == other).count() / FOLD;
            let known = turns.last().map_or(&[][..], |turn| &turn.blocks[..same]);
            let blocks = self.fold(line, opening, &first, known.to_vec());
            turns.push(Turn { at: (item.t - began).max(0.0), blocks });
            std::mem::swap(&mut before, &mut self.ids);
        }
        // A prompt shorter than one of our blocks caches nothing.
        Ok((!turns.is_empty()).then_some(turns))
    }

    /// The folded blocks of `ids`, of which these are known.
    fn fold(&mut self, line: u64, opening: Opening, first: &[u64], mut blocks: Vec<Block>) -> Vec<Block> {
        let shared = first.iter().zip(&self.ids).take_while(|(one, other)| one == other).count();
        let done = blocks.len();
        for (nth, ids) in self.ids.chunks_exact(FOLD).enumerate().skip(done) {
            let mut content = DefaultHasher::new();
            let is_shared = (nth + 1) * FOLD <= shared;
            if is_shared {
                (opening.tools, opening.system, nth).hash(&mut content);
            } else {
                (line, ids).hash(&mut content);
            }
            let parent = blocks.last().map_or(u32::MAX, |block| block.0);
            let fresh = self.known.len() as u32 | if is_shared { SHARED } else { 0 };
            blocks.push(Block(*self.known.entry((parent, content.finish())).or_insert(fresh)));
        }
        blocks
    }
}

/// Writes runs out.
fn expand(runs: &[(u64, u64)], ids: &mut Vec<u64>) -> Result<()> {
    const BLOCKS_MAX: usize = 1 << 20;
    ids.clear();
    for (first, count) in runs {
        let end = first.checked_add(*count).context("a run without end")?;
        ensure!(ids.len() as u64 + count <= BLOCKS_MAX as u64, "more than {BLOCKS_MAX} blocks");
        ids.extend(*first..end);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(number: u64, text: &str, reader: &mut Reader) -> Vec<Vec<Turn>> {
        let mut trace = Trace::default();
        reader.line(number, &serde_json::from_str(text).unwrap(), &mut trace).unwrap();
        trace.sessions
    }

    #[test]
    fn sessions_share_what_they_open_with_and_turns_what_they_repeat() {
        let text = r#"{"block_size":64,"tool_tokens":2048,"system_tokens":0,"requests":[
            {"t":5,"hash_rle":[[1,64]]}, {"t":7.5,"hash_rle":[[1,64],[100,17]]},
            {"t":8,"agent_id":"a","requests":[{"t":1,"hash_rle":[[1,32]]}]}]}"#;
        let mut reader = Reader::default();
        let (one, two) = (line(1, text, &mut reader), line(2, text, &mut reader));
        let [own, agent] = &one[..] else { panic!("{one:?}") };
        assert_eq!(
            own.iter().map(|turn| (turn.at, turn.blocks.len())).collect::<Vec<_>>(),
            [(0.0, 4), (2.5, 5)]
        );
        assert_eq!(own[1].blocks[..4], own[0].blocks[..]);
        // Of 2,048 tokens two blocks of 16 times 64; the agent has no tools and its own line's ids.
        assert_eq!(two[0][0].blocks[..2], own[0].blocks[..2]);
        assert_ne!(two[0][0].blocks[2], own[0].blocks[2]);
        assert_ne!(agent[0].blocks[0], own[0].blocks[0]);
        assert_eq!(own[0].blocks[1].tokens(0), own[0].blocks[1].tokens(1));
        assert_ne!(own[0].blocks[2].tokens(0), own[0].blocks[2].tokens(1));
    }
}
