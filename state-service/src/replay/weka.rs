//! Weka's traces of a coding agent: a session a line, with `requests` of their own. A request names its blocks by runs of consecutive
//! ids (`hash_rle`: `[[first, count], …]`), and its time in seconds since the session began. An item with `requests` of its own is a
//! sub-agent: a session by itself, of the same ids.
//!
//! Ids mean something within a line only. What sessions share is what stands before their first message: the blocks of the first
//! `tool_tokens` tokens are taken to be those of every session with as many, the blocks up to `tool_tokens + system_tokens` those of
//! every session that has both in common; in later requests, as far as they are where the session's first request has them.

use super::read::{Lines, Problem, full_blocks, json, millis, room};
use super::trace::{Content, Node, PROMPT_BLOCKS_MAX, Request, Session, Trace};
use serde::Deserialize;
use std::ops::Range;

/// What tells kinds of content apart.
const LOCAL: u64 = 1;
const GLOBAL: u64 = 2;
const TOOLS: u64 = 3;
const SYSTEM: u64 = 4;
const BLOCK_SIZES: Range<u32> = 2..4097;

/// Rooms that are used again for every session.
#[derive(Default)]
pub(super) struct Reader {
    opening: Vec<u64>,
    ids: Vec<u64>,
    /// The session's last request, by ids and by nodes.
    before: Vec<u64>,
    path: Vec<Node>,
}

#[derive(Deserialize)]
struct Line {
    id: String,
    block_size: u32,
    #[serde(default)]
    hash_id_scope: Scope,
    #[serde(default)]
    tool_tokens: u32,
    #[serde(default)]
    system_tokens: u32,
    requests: Vec<Item>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Scope {
    #[default]
    Local,
    Global,
}

#[derive(Deserialize)]
struct Item {
    t: f64,
    #[serde(rename = "in")]
    tokens: Option<u32>,
    #[serde(default, rename = "out")]
    output: u32,
    hash_rle: Option<Vec<(u64, u64)>>,
    agent_id: Option<String>,
    #[serde(default)]
    tool_tokens: u32,
    #[serde(default)]
    system_tokens: u32,
    requests: Option<Vec<Item>>,
}

/// A session to be read.
struct Part<'a> {
    key: String,
    line: usize,
    scope: Scope,
    /// Begins so many milliseconds after its line.
    begins: u64,
    tools: u32,
    system: u32,
    items: Vec<&'a Item>,
}

impl Lines for Reader {
    fn take(&mut self, number: usize, line: &[u8], trace: &mut Option<Trace>) -> Result<(), Problem> {
        let line: Line = json(line)?;
        if !BLOCK_SIZES.contains(&line.block_size) {
            return Err(format!("block_size {}: 2..=4096 tokens", line.block_size));
        }
        let trace = trace.get_or_insert_with(|| Trace::new(line.block_size));
        let known = trace.forest.block_size();
        if known != line.block_size {
            return Err(format!("block_size {} after sessions of {known}", line.block_size));
        }
        for part in parts(number, &line)? {
            self.session(&part, trace)?;
        }
        Ok(())
    }
}

/// The line's own session, then its sub-agents.
fn parts(number: usize, line: &Line) -> Result<Vec<Part<'_>>, Problem> {
    let own = Part {
        key: line.id.clone(),
        line: number,
        scope: line.hash_id_scope,
        begins: 0,
        tools: line.tool_tokens,
        system: line.system_tokens,
        items: line.requests.iter().filter(|item| item.requests.is_none()).collect(),
    };
    let mut parts = vec![own];
    for (at, item) in line.requests.iter().enumerate() {
        let Some(requests) = &item.requests else { continue };
        let agent = item.agent_id.clone().unwrap_or_else(|| at.to_string());
        if requests.iter().any(|nested| nested.requests.is_some()) {
            return Err(format!("requests[{at}]: a sub-agent with sub-agents"));
        }
        parts.push(Part {
            key: format!("{}:{agent}", line.id),
            begins: millis("t", item.t, 0.001)?,
            tools: item.tool_tokens,
            system: item.system_tokens,
            items: requests.iter().collect(),
            ..Part {
                key: String::new(),
                line: number,
                scope: line.hash_id_scope,
                begins: 0,
                tools: 0,
                system: 0,
                items: Vec::new(),
            }
        });
    }
    Ok(parts)
}

impl Reader {
    fn session(&mut self, part: &Part<'_>, trace: &mut Trace) -> Result<(), Problem> {
        self.opening.clear();
        self.before.clear();
        self.path.clear();
        let first = trace.requests.len();
        for (at, item) in part.items.iter().enumerate() {
            let request = self.request(part, item, trace);
            trace.requests.push(request.map_err(|problem| format!("{}: request {at}: {problem}", part.key))?);
        }
        if trace.requests.len() > first {
            let key = Some(part.key.clone().into_boxed_str());
            trace.sessions.push(Session { key, requests: first..trace.requests.len(), line: part.line });
        }
        Ok(())
    }

    fn request(&mut self, part: &Part<'_>, item: &Item, trace: &mut Trace) -> Result<Request, Problem> {
        room(trace)?;
        let runs = item.hash_rle.as_ref().ok_or("neither hash_rle nor requests")?;
        let tokens = item.tokens.ok_or("no in")?;
        expand(runs, &mut self.ids)?;
        let full = full_blocks("hash_rle", self.ids.len(), tokens, trace.forest.block_size())?;
        let listed = u32::try_from(self.ids.len()).unwrap_or(u32::MAX);
        self.ids.truncate(full);
        if self.opening.is_empty() {
            self.open(part, trace.forest.block_size());
        }
        self.follow(part, trace)?;
        let at = part.begins.saturating_add(millis("t", item.t, 0.001)?);
        Ok(Request { at, leaf: self.path.last().copied(), listed, tokens, output: item.output })
    }

    /// Keeps what the session's first request begins with.
    fn open(&mut self, part: &Part<'_>, block_size: u32) {
        let shared = (part.tools.saturating_add(part.system) / block_size) as usize;
        self.opening.extend(self.ids.iter().take(shared));
    }

    /// Makes `path` that of `ids`; what the request before had too is there already.
    fn follow(&mut self, part: &Part<'_>, trace: &mut Trace) -> Result<(), Problem> {
        let same = self.before.iter().zip(&self.ids).take_while(|(before, now)| before == now).count();
        self.path.truncate(same);
        let shared = self.opening.iter().zip(&self.ids).take_while(|(opening, now)| opening == now).count();
        let tools = (part.tools / trace.forest.block_size()) as usize;
        for (at, id) in self.ids.iter().enumerate().skip(same) {
            let place = at as u64;
            let content = match part.scope {
                _ if at < shared.min(tools) => Content::of(&[TOOLS, part.tools.into(), place]),
                _ if at < shared => Content::of(&[SYSTEM, part.tools.into(), part.system.into(), place]),
                Scope::Local => Content::of(&[LOCAL, part.line as u64, *id]),
                Scope::Global => Content::of(&[GLOBAL, *id]),
            };
            self.path.push(trace.forest.after(self.path.last().copied(), content)?);
        }
        std::mem::swap(&mut self.before, &mut self.ids);
        Ok(())
    }
}

/// Writes runs out.
fn expand(runs: &[(u64, u64)], ids: &mut Vec<u64>) -> Result<(), Problem> {
    ids.clear();
    for (first, count) in runs {
        let end =
            first.checked_add(*count).ok_or_else(|| format!("hash_rle [{first}, {count}] has no end"))?;
        let room = PROMPT_BLOCKS_MAX.saturating_sub(ids.len()) as u64;
        if *count > room {
            return Err(format!("more than {PROMPT_BLOCKS_MAX} blocks"));
        }
        ids.extend(*first..end);
    }
    Ok(())
}
