//! A conversation tokenised turn by turn has the blocks of the whole, by the reference tokenizer, whatever is in it.

use super::model::{CHATML, THINKING, local};
use crate::tokenize::Which;
use crate::tokenize::body::{Surface, read};
use crate::tokenize::cuts::STEP;
use crate::tokenize::encode::Encoder;
use crate::tokenize::local::Local;
use crate::tokenize::prefix::{Chaining, Prefixes, Room, keys};
use crate::tokenize::render::Rendered;
use proptest::prelude::*;
use routing::block::{Chain, Namespace, seed};
use serde_json::{Value, json};

/// Pieces of which messages are made: marks among text, tokens that overlap, blanks before and behind, marks that decompose.
const PIECES: &[&str] = &[
    "the flight",
    " and please book",
    "\n\n",
    "   ",
    " ",
    "<|im_end|>",
    "<|im_start|>",
    "<a>",
    "<a><b>",
    "<b>",
    "<|r|>",
    "<|l|>",
    "<think>",
    "</think>\n\n",
    "<s>",
    "e\u{301}",
    "\u{301}",
    "日本語",
    "😀",
    "123456",
    "it's",
    "\t",
    "<|im_",
    "end|>",
    "{\"a\": [1, 2]}",
];

fn reference(encoder: &Encoder, text: &str, room: Room) -> Chain {
    let mut tokens = if room.marks { encoder.before().to_vec() } else { Vec::new() };
    tokens.extend(encoder.encode(text).unwrap());
    Chain::of(Namespace::default(), room.block_size, &tokens)
}

fn message(role: &str, pieces: &[(usize, usize)], thought: bool) -> Value {
    let text: String = pieces.iter().map(|(piece, times)| PIECES[*piece].repeat(*times)).collect();
    let thought = thought.then(|| text.chars().rev().take(1500).collect::<String>());
    json!({ "role": role, "content": text, "reasoning_content": thought })
}

fn check(local: &Local, oracle: &Encoder, messages: &[Value], room: Room) {
    for turn in 1..=messages.len() {
        let body = json!({ "messages": messages[..turn], "add_special_tokens": room.marks }).to_string();
        let Rendered::Text { text, .. } = local.render(read(Surface::Chat, &body, true).unwrap()).unwrap()
        else {
            panic!()
        };
        assert_eq!(
            local.chain_of(&text, room).unwrap(),
            reference(oracle, &text, room),
            "turn {turn} of {body}"
        );
    }
}

fn conversation() -> impl Strategy<Value = Vec<Vec<(usize, usize)>>> {
    let piece = (0..PIECES.len(), prop_oneof![8 => 1usize..3, 1 => 40usize..120]);
    prop::collection::vec(prop::collection::vec(piece, 0..12), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn turn_by_turn_is_as_the_whole(conversation in conversation(), marks: bool, template in 0..2usize) {
        thread_local! {
            static MODELS: [Local; 4] = [
                local(CHATML, Which::Fast), local(THINKING, Which::Fast), local(CHATML, Which::Reference), local(THINKING, Which::Reference),
            ];
            static ORACLE: Encoder = Encoder::new(super::model::tokenizer().to_string().as_bytes(), Which::Reference).unwrap();
        }
        let roles = ["system", "user", "assistant", "tool", "assistant", "user"];
        let messages: Vec<_> = conversation.iter().zip(roles).map(|(pieces, role)| message(role, pieces, role == "assistant")).collect();
        let room = Room { seed: seed(Namespace::default()), block_size: 16, marks };
        MODELS.with(|models| ORACLE.with(|oracle| {
            check(&models[template], oracle, &messages, room);
            check(&models[template + 2], oracle, &messages, room);
            assert!(models[template].is_fast() && !models[template + 2].is_fast());
            assert!(models.iter().all(|model| model.splits_refused() == 0));
        }));
    }
}

#[test]
fn a_next_turn_costs_its_new_messages() {
    for template in [CHATML, THINKING] {
        let local = local(template, Which::Fast);
        let long = |role: &str, seed: usize| message(role, &[(seed, 100), (0, 200)], false);
        let mut messages = vec![long("system", 1), long("user", 2)];
        let ask = |messages: &[Value]| {
            let body = json!({ "messages": messages }).to_string();
            local.chain(read(Surface::Chat, &body, true).unwrap(), None, 16).unwrap()
        };
        let length = |messages: &[Value]| {
            let body = json!({ "messages": messages }).to_string();
            let Rendered::Text { text, .. } =
                local.render(read(Surface::Chat, &body, true).unwrap()).unwrap()
            else {
                panic!()
            };
            text.len() as u64
        };
        let first = ask(&messages);
        let (before, first_bytes) = (local.bytes(), length(&messages));
        messages.extend([long("assistant", 0), message("user", &[(1, 1)], false)]);
        let second = ask(&messages);
        let (known, encoded) = local.bytes();
        assert!(second.hashes.starts_with(&first.hashes[..first.hashes.len() - 1]));
        assert_eq!(before, (0, first_bytes));
        // The first turn but for one step at its end, and the generation prompt; tokenised is the rest.
        assert!(known + STEP as u64 + 30 > first_bytes, "{known} of {first_bytes}");
        assert_eq!(encoded - before.1, length(&messages) - known);
    }
}

#[test]
fn namespaces_block_sizes_and_marks_keep_texts_apart() {
    let local = local(CHATML, Which::Fast);
    let text = format!("<|im_start|>{}<|im_end|>{}", "the flight".repeat(300), "x".repeat(50));
    let room =
        |lora, block_size, marks| Room { seed: seed(Namespace { lora, salt: None }), block_size, marks };
    let rooms =
        [room(None, 16, false), room(None, 16, true), room(None, 32, false), room(Some("a"), 16, false)];
    let chains: Vec<_> = rooms.iter().map(|room| local.chain_of(&text, *room).unwrap()).collect();
    for (index, chain) in chains.iter().enumerate() {
        assert!(chains[..index].iter().all(|other| other.hashes[0] != chain.hashes[0]), "{index}");
        assert_eq!(local.chain_of(&text, rooms[index]).unwrap(), *chain);
    }
    assert_eq!(chains[1].tokens, chains[0].tokens + 1);
    assert_eq!(local.chain_of(&text, room(None, 0, false)).unwrap().hashes, []);
}

/// A tokenizer that does not keep what `cuts` promises is found out, and from then on right.
#[test]
fn a_tokenizer_that_breaks_the_rule_tokenises_whole_texts() {
    let text = format!("<|im_start|>{}<|im_end|>tail", "the flight".repeat(300));
    let room = Room { seed: seed(Namespace::default()), block_size: 16, marks: false };
    let mut local = local(CHATML, Which::Reference);
    let right = local.chain_of(&text, room).unwrap();
    let mut strange = super::model::tokenizer();
    for token in strange["added_tokens"].as_array_mut().unwrap() {
        token["id"] = json!(token["id"].as_u64().unwrap() + 1);
    }
    local.forget_with(&strange);
    assert_eq!(local.chain_of(&text, room).unwrap(), right);
    assert_eq!(local.splits_refused(), 1);
    assert_eq!(local.chain_of(&text, room).unwrap(), right);
    assert_eq!(local.splits_refused(), 1);
}

#[test]
fn known_beginnings_stay_within_their_bound() {
    let prefixes = Prefixes::new(20_000);
    let room = Room { seed: 1, block_size: 4, marks: false };
    for number in 0..300_u32 {
        let text = format!("{number:08}").repeat(50);
        let keys = keys(room, &text, (8..=text.len()).step_by(8));
        let known = prefixes.longest(&keys).map(|(_, node)| node);
        assert!(known.is_none(), "every text is new");
        let mut chaining = Chaining::from(room, None);
        let mut newest = None;
        for key in &keys {
            chaining.add(&[number, 1, 2, 3, 4]);
            newest = Some(chaining.node(*key));
        }
        prefixes.keep(&newest.unwrap());
        // One prompt more than its bound.
        assert!(prefixes.bytes() < 20_000 + 50 * 300, "{}", prefixes.bytes());
        assert_eq!(prefixes.longest(&keys).map(|(place, _)| place), Some(keys.len() - 1));
    }
}

/// A chain of a hundred thousand nodes is let go without a stack of that depth.
#[test]
fn long_conversations_end_without_recursion() {
    let mut chaining = Chaining::from(Room { seed: 1, block_size: 1, marks: false }, None);
    for key in 0..200_000 {
        chaining.add(&[7]);
        drop(chaining.node(key));
    }
    let chain = chaining.finish();
    assert_eq!((chain.hashes.len(), chain.tokens), (200_000, 200_000));
}

/// Clients write roles before contents, and some after.
#[test]
fn a_cut_body_has_the_blocks_of_the_whole_as_far_as_it_goes() {
    let (system, user) = ("the flight".repeat(300), " and please book".repeat(600));
    let roles_first = format!(
        r#"{{"messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{user}"}}]}}"#
    );
    // Whose message it is that is cut is not known: it is left out.
    let roles_last = format!(
        r#"{{"messages":[{{"content":"{system}","role":"system"}},{{"content":"{user}","role":"user"}}]}}"#
    );
    for (body, at_least) in [(roles_first, 30), (roles_last, 10)] {
        let local = local(CHATML, Which::Fast);
        let chain =
            |body: &str, whole| local.chain(read(Surface::Chat, body, whole).unwrap(), None, 16).unwrap();
        let whole = chain(&body, true);
        for percent in [40, 60, 80, 99] {
            let cut = chain(&body[..body.len() * percent / 100], false);
            let found = cut.hashes.len() * 100 / whole.hashes.len();
            assert!(found >= at_least, "{found} of a hundred at {percent}");
            assert!(whole.hashes.starts_with(&cut.hashes), "{percent}");
        }
    }
}
