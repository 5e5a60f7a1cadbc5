//! A small model: a byte-level BPE made by hand, and templates of the kinds that are out there.

use crate::tokenize::Which;
use crate::tokenize::body::{Surface, read};
use crate::tokenize::json::Json;
use crate::tokenize::local::{Files, Local};
use crate::tokenize::reason::{Counters, Reason};
use crate::tokenize::render::Rendered;
use serde_json::{Value, json};
use std::sync::Arc;
use tempfile::TempDir;

/// Marks of turns, no whitespace control.
pub(super) const CHATML: &str = "{% if tools %}<|im_start|>system\ntools: {{ tools | tojson }}<|im_end|>\n{% endif %}\
    {% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}\
    {% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// Leaves out what an assistant thought before the last question.
pub(super) const THINKING: &str = r"
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\n' }}
    {%- if m.reasoning_content and loop.index0 > ns.last %}
        {{- '<think>\n' + m.reasoning_content.strip('\n') + '\n</think>\n\n' }}
    {%- endif %}
    {{- m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}";
/// Begins with the mark of the beginning, as Llama's.
pub(super) const WITH_BOS: &str =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
/// Goes through the parts of contents.
pub(super) const PARTS: &str = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}text:{{ m.content }}{% else %}\
    {% for item in m.content %}({{ item.type }}:{{ item.text }}){% endfor %}{% endif %}{% endfor %}";

const WORDS: &[&str] = &[
    "the",
    "and",
    "flight",
    "user",
    "assistant",
    "system",
    "tool",
    "reservation",
    "please",
    "book",
    "time",
    "name",
    "Ġthe",
    "Ġand",
    "Ġflight",
    "Ġto",
    "Ġof",
    "Ġa",
    "Ġis",
    "Ġfor",
    "Ġyou",
    "Ġreservation",
    "Ġplease",
    "ĠĠ",
    "ĊĊ",
    "ing",
    "er",
    "ion",
    "Ġin",
    "Ġwith",
];

/// `tokenizer.json` of the model; BOS before a text that gets marks.
pub(super) fn tokenizer() -> Value {
    let mut vocabulary: Vec<String> = bytes().into_iter().map(String::from).collect();
    let mut merges = Vec::new();
    for word in WORDS {
        let mut so_far = String::new();
        for c in word.chars() {
            let longer = format!("{so_far}{c}");
            if !vocabulary.contains(&longer) {
                merges.push(json!([so_far, c]));
                vocabulary.push(longer.clone());
            }
            so_far = longer;
        }
    }
    let added = [
        "<s>",
        "</s>",
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "</think>",
        "<a>",
        "<a><b>",
        "<|r|>",
        "<|l|>",
    ];
    let first = vocabulary.len();
    let added: Vec<_> = (first..).zip(added).map(|(id, content)| json!({
        "id": id, "content": content, "single_word": false, "lstrip": content == "<|l|>", "rstrip": content == "<|r|>",
        "normalized": false, "special": content.contains('|'),
    })).collect();
    let vocab: serde_json::Map<_, _> =
        (0..).zip(vocabulary).map(|(id, token)| (token, json!(id as u32))).collect();
    let split = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": { "type": "NFC" },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": split }, "behavior": "Isolated", "invert": false },
            { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false } ] },
        "post_processor": { "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [first], "tokens": ["<s>"] } } },
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false },
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges },
    })
}

/// The 256 characters that stand for bytes.
fn bytes() -> Vec<char> {
    let printable = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut others = 256..;
    (0..256).filter_map(|b| char::from_u32(if printable(b) { b } else { others.next()? })).collect()
}

pub(super) fn folder(template: Option<&str>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer().to_string()).unwrap();
    let config = json!({ "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": { "content": "<s>" },
        "eos_token": "<|im_end|>", "chat_template": template });
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

/// 2026-03-04 05:06:07 UTC, a Wednesday.
pub(super) fn clock() -> u64 {
    1_772_600_767
}

pub(super) fn local_with(template: Option<&str>, which: Which, kwargs: Vec<(String, Json)>) -> Local {
    let folder = folder(template);
    let files = Files { folder: folder.path().to_owned(), template: None, kwargs, which };
    Local::load(&files, None, clock, Arc::new(Counters::default())).unwrap()
}

pub(super) fn local(template: &str, which: Which) -> Local {
    local_with(Some(template), which, Vec::new())
}

/// What the engine would be prompted with.
pub(super) fn rendered(local: &Local, surface: Surface, body: &Value) -> Result<String, Reason> {
    match local.render(read(surface, &body.to_string(), true)?)? {
        Rendered::Text { text, marks } => Ok(if marks { format!("+{text}") } else { text }),
        Rendered::Tokens(tokens) => Ok(format!("{tokens:?}")),
    }
}
