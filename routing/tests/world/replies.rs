//! The service's answers as scripts write them.

use crate::common::{pool_name, target};
use routing::contract::{Explained, Explanation, Outcome, Overlap, RouteReply, SessionRef, TTL_DEFAULT};
use routing::hash::{Phase, rank_hash};
use routing::id::{Cursor, Epoch, HoldId, SessionId, Version};

/// `OUTCOME [WORKER] [rank N] [vN] [hold N] [reason WORD] [overlap N/N] [session KEY] [explained] [+ the prefill half, likewise]`.
pub(super) fn reply(words: &[&str], session: impl Fn(&str) -> SessionId) -> RouteReply {
    let mut halves = words.split(|word| *word == "+");
    let words = halves.next().unwrap();
    let prefill = halves.next().map(|words| Box::new(half(words)));
    let key = after(words, "session");
    let session = key.map(|key| SessionRef { id: session(key), rank_hash: rank_hash(key.as_bytes()) });
    let half = half(words);
    let explained = words.contains(&"explained").then(|| Explained::of(&explanation(&half))).flatten();
    RouteReply { prefill, session, explained, ..half }
}

fn half(words: &[&str]) -> RouteReply {
    let outcome: Outcome = serde_json::from_str(&format!("\"{}\"", words[0])).unwrap();
    let refusal = words.get(1).filter(|_| outcome == Outcome::Refused);
    let refusal = refusal.map(|word| serde_json::from_str(&format!("\"{word}\"")).unwrap());
    let number = |name: &str| after(words, name).map(|word| word.parse::<u64>().unwrap());
    let named = words.get(1).filter(|w| w.starts_with('w') && outcome != Outcome::Refused);
    let rank = number("rank").map(|rank| u32::try_from(rank).unwrap());
    let seq = words.iter().skip(1).find_map(|w| w.strip_prefix('v')?.parse().ok()).unwrap_or(0);
    let reason = after(words, "reason").unwrap_or("scripted");
    RouteReply {
        refusal,
        target: named.map(|worker| target(worker, rank)),
        version: Version { seq, writer: 0 },
        hold: number("hold").map(HoldId),
        ttl_ms: TTL_DEFAULT,
        overlap: after(words, "overlap").and_then(overlap),
        ..RouteReply::nowhere(outcome, Cursor(0), Epoch(1), reason)
    }
}

fn after<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().position(|word| *word == name).map(|at| words[at + 1])
}

fn overlap(text: &str) -> Option<Overlap> {
    let (blocks, of) = text.split_once('/')?;
    Some(Overlap { blocks: blocks.parse().ok()?, of: of.parse().ok()? })
}

fn explanation(reply: &RouteReply) -> Explanation {
    Explanation {
        key: None,
        pool: pool_name("chat"),
        phase: Phase::Aggregated,
        outcome: reply.outcome,
        refusal: reply.refusal,
        reason: reply.reason.clone(),
        choice: reply.target.clone(),
        candidates: Vec::new(),
        prefill: None,
    }
}
