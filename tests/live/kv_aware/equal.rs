//! What the service says of a prompt's blocks is what the engine finds, whatever the shape of the request.

use std::collections::BTreeSet;

use super::fleet::{Answer, Ask, heard, plan, start, words};
use e2e::World;
use serde_json::{Value, json};

/// One conversation: its turns and what they are made of.
struct Talk {
    number: u32,
    messages: Vec<Value>,
}

/// Conversations that share system prompts and tools, with sessions and without, streamed and not; completions of texts and of tokens
/// that share beginnings. Each turn is told of before the next one begins.
#[tokio::test(flavor = "multi_thread")]
async fn where_so_many_blocks_overlap_the_engine_finds_so_many() {
    let world = start(plan(3, 4, &[])).await;
    let mut answers = Vec::new();
    let mut talks: Vec<Talk> = (0..18).map(Talk::new).collect();
    for turn in 0..3 {
        for talk in &mut talks {
            answers.extend(talk.turn(&world, turn).await);
        }
    }
    for n in 0..24 {
        answers.push(complete(&world, n).await);
    }
    let wrong: Vec<_> = answers.iter().filter(|answer| !answer.is_as_said()).collect();
    let found = answers.iter().filter(|answer| answer.cached_tokens > 0).count();
    let share = 100.0 * (answers.len() - wrong.len()) as f64 / answers.len() as f64;
    println!("{} turns asked, {found} found something, {share:.1} % as said", answers.len());
    assert!(share >= 99.0, "{wrong:#?}");
    assert!(found * 10 >= answers.len() * 6, "only {found} of {} found anything", answers.len());
    let mut slots: BTreeSet<_> = answers.iter().map(|answer| answer.slot.clone()).collect();
    // Where nobody is in a hurry beginnings stay where they are, and two of them may be at one slot by chance.
    for n in 0..2_000 {
        if slots.len() < 6 {
            slots.insert(Ask::completion(&json!(words(10_000 + n, 40))).send(&world).await.slot);
        }
    }
    assert!(slots.len() >= 6, "on {slots:?} only");
    assert!(answers.iter().filter(|answer| answer.cached_tokens > 0).all(|a| a.reason == "overlap"));
}

impl Talk {
    fn new(number: u32) -> Self {
        let system = json!({"role": "system", "content": words(1 + number % 3, 150)});
        Self { number, messages: vec![system] }
    }

    /// Nothing of turns that did not ask: those of a session after its first.
    async fn turn(&mut self, world: &World, turn: u32) -> Option<Answer> {
        let user = words(100 * self.number + turn, 30);
        // Parts of text are joined as the engine joins them.
        let content = match self.number % 4 {
            3 => json!([{"type": "text", "text": user}, {"type": "text", "text": "and ünïcödé <&>"}]),
            _ => json!(user),
        };
        self.messages.push(json!({"role": "user", "content": content}));
        let mut ask = Ask::chat(&json!(self.messages));
        if self.number % 3 == 1 {
            ask = ask.with("tools", tools());
        }
        if self.number % 2 == 1 {
            ask = ask.streamed();
        }
        let has_session = self.number % 3 == 2;
        if has_session {
            ask = ask.session(&format!("talk-{}", self.number));
        }
        let answer = ask.send(world).await;
        heard(world, &answer.slot).await;
        self.messages.push(self.reply(&answer));
        if self.number % 3 == 1 {
            self.messages
                .push(json!({"role": "tool", "tool_call_id": "call_1", "content": "{\"found\": 3}"}));
        }
        (!has_session || turn == 0).then_some(answer)
    }

    fn reply(&self, answer: &Answer) -> Value {
        let mut reply = json!({"role": "assistant", "content": answer.text});
        if self.number % 3 == 1 {
            let arguments = "{\"query\": \"größe\", \"at\": [1, 2.5, null], \"a\": {}}";
            reply["tool_calls"] = json!([{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": arguments}}]);
        }
        reply
    }
}

/// In no alphabetical order: they are printed in theirs.
fn tools() -> Value {
    let text = r#"[{"type": "function", "function": {"name": "look", "description": "Looks for it. <b>", "parameters":
        {"type": "object", "properties": {"query": {"type": "string"}, "at": {"type": "array"}, "a": {"type": "object"}},
         "required": ["query"]}, "strict": true}}]"#;
    serde_json::from_str(text).unwrap()
}

/// A text, or tokens, that begins as two thirds of the others do.
async fn complete(world: &World, n: u32) -> Answer {
    let ask = if n.is_multiple_of(2) {
        Ask::completion(&json!(format!("{}{}", words(1000 + n % 3, 200), words(2000 + n, 40))))
    } else {
        let head = (0..160).map(|at| 10 + (at * 7 + n % 3) % 1000);
        // At times a whole number of blocks: the last one is computed anyway.
        let tail = (0..40 + n % 16).map(|at| 10 + (at * 5 + n / 6) % 1000);
        Ask::completion(&json!(head.chain(tail).collect::<Vec<u32>>()))
    };
    let ask = if n % 4 < 2 { ask } else { ask.streamed() };
    let answer = ask.send(world).await;
    heard(world, &answer.slot).await;
    answer
}
