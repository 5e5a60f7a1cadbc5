//! Cutting changes no token, replies survive a round trip, the template is the one the model was trained for.

use serde_json::json;

use super::{BOS, Generate, Model, Start};

const TEXTS: [&str; 12] = [
    "",
    " ",
    "hello world",
    "  two  spaces   three \n newline\t tab \r\n end ",
    "You said \"no\" , didn't you ? I've 3 apples, 12 pears & 100% fun -- really...",
    "<|im_start|>user\nsay <|im_end|> now<|im_end|>\n",
    "pre <|im_end|> mid<|im_end|> post <s> x</s>",
    "Äpfel und Öl, naïve café – “quotes” 你好 世界 🙂 ok 👩‍👩‍👧 end",
    "fn main() { let x = vec![1, 2, 3]; println!(\"{x:?}\"); }",
    "a\u{a0}b \u{a0} c\u{3000}d e\u{200b}f",
    "https://example.com/a b?c=d e",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa b",
];

#[test]
fn cutting_at_spaces_changes_no_token() {
    let model = Model::shared().unwrap();
    let corpus = include_str!("../../model/corpus.txt");
    for text in TEXTS.iter().copied().chain(corpus.lines()).chain([corpus]) {
        assert_eq!(&*model.encode(text, Start::Plain), model.encode_whole(text), "{text:?}");
    }
}

#[test]
fn bos_is_in_front_where_asked() {
    let model = Model::shared().unwrap();
    let plain = model.encode("hello world", Start::Plain);
    let marked = model.encode("hello world", Start::Bos);
    assert_eq!((marked[0], &marked[1..]), (BOS, &plain[..]));
}

#[test]
fn a_conversation_renders_as_chatml() {
    let model = Model::shared().unwrap();
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]);
    let text = model.render(&messages, None, Generate::Reply).unwrap();
    let expected =
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(text, expected);
    let history = model.render(&messages, None, Generate::Nothing).unwrap();
    assert_eq!(format!("{history}<|im_start|>assistant\n"), text);
    let with_tools = model.render(&messages, Some("[{\"type\": 1}]"), Generate::Reply).unwrap();
    assert!(with_tools.starts_with("<|im_start|>system\ntools: [{\"type\": 1}]<|im_end|>"), "{with_tools}");
    assert_eq!(model.encode(&text, Start::Plain)[0], 2);
}

#[test]
fn a_reply_is_the_same_tokens_in_the_next_turn() {
    let model = Model::shared().unwrap();
    let prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    for seed in 0..200 {
        let reply = model.reply(seed, 40);
        let text: String = reply.iter().map(|word| &*word.text).collect();
        let mut tokens = model.encode(prompt, Start::Plain).to_vec();
        tokens.extend(reply.iter().map(|word| word.token));
        let next = model.encode(&format!("{prompt}{text}<|im_end|>\n"), Start::Plain);
        assert_eq!(next[..tokens.len()], tokens, "seed {seed}");
    }
}

#[test]
fn there_are_words_enough_to_tell_replies_apart() {
    let model = Model::shared().unwrap();
    assert!(model.openers.len() >= 16, "{}", model.openers.len());
    assert!(model.followers.len() >= 400, "{}", model.followers.len());
}

#[test]
fn replies_depend_on_the_seed_alone() {
    let model = Model::shared().unwrap();
    let text = |seed| model.reply(seed, 12).iter().map(|word| &*word.text).collect::<String>();
    assert_eq!(text(1), text(1));
    assert_ne!(text(1), text(2));
}

#[test]
fn the_lower_bound_of_tokens_is_one() {
    let model = Model::shared().unwrap();
    for text in TEXTS {
        assert!(model.tokens_at_least(text) <= model.encode(text, Start::Plain).len(), "{text:?}");
    }
}
