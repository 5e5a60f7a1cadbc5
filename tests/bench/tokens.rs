//! `bench tokens`: how fast prompts become tokens, and what a conversation's next turn costs beside its whole. Every turn's blocks are
//! compared with those of the whole text, and each conversation's last ones with the reference tokenizer's. Needs no Envoy.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use routing::block::{Chain, Namespace};
use serde_json::{Value, json};
use state_service::tokenize::Which;
use state_service::tokenize::trial::Trial;

use crate::report::{Report, median, table};

/// The fake engine's own small model.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/engine/model");
/// Text that the reference tokenises for its speed: it takes a second a megabyte.
const REFERENCE_BYTES: usize = 1 << 20;
/// What the generated conversations are made of.
const WORDS: [&str; 12] =
    ["the", "flight", "leaves", "at", "ten", "from", "gate", "four;", "please", "confirm", "your", "seat.\n"];

/// What to measure with.
#[derive(Args, Clone, Debug)]
pub(crate) struct Plan {
    /// Folder with tokenizer.json and tokenizer_config.json; left out: the fake engine's.
    #[arg(long)]
    model: Option<PathBuf>,
    /// JSON list of conversations, each a list of messages or an object with `messages` or `traj`; left out: generated ones.
    #[arg(long)]
    conversations: Option<PathBuf>,
    /// At most so many conversations.
    #[arg(long, default_value_t = 40)]
    limit: usize,
    /// Tokens of a block.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    block_size: u32,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

/// The turns of one pass.
#[derive(Debug, Default)]
struct Pass {
    turns: usize,
    bytes: usize,
    encoded: u64,
    render: Vec<f64>,
    next: Vec<f64>,
    whole: Vec<f64>,
}

/// Measures and prints.
///
/// # Errors
/// A file cannot be read, or blocks differ.
pub(crate) fn run(plan: &Plan) -> Result<()> {
    let folder = plan.model.clone().unwrap_or_else(|| PathBuf::from(MODEL));
    let load = |which| Trial::load(&folder, which).map_err(|error| anyhow!("{}: {error}", folder.display()));
    let (mut fast, reference) = (load(Which::Fast)?, load(Which::Reference)?);
    ensure!(fast.is_fast(), "the model is not one for the fast tokenizer");
    let conversations = conversations(plan)?;
    let mut report = Report::new("tokens", conversations.len());
    let texts = conversations.iter().map(|messages| text(&fast, messages)).collect::<Result<Vec<_>>>()?;
    let mut rows = vec![["", "fast MB/s", "reference MB/s"].map(str::to_owned).to_vec()];
    let speeds = [speed(&fast, &texts, usize::MAX)?, speed(&reference, &texts, REFERENCE_BYTES)?];
    rows.push(vec!["whole texts".to_owned(), format!("{:.1}", speeds[0]), format!("{:.1}", speeds[1])]);
    report.value("mb_per_s_fast", speeds[0]);
    report.value("mb_per_s_reference", speeds[1]);
    println!(
        "{} conversations, {} bytes as text\n",
        texts.len(),
        texts.iter().map(String::len).sum::<usize>()
    );
    println!("{}", table(&rows));
    let mut rows = vec![TURNS.map(str::to_owned).to_vec()];
    for (name, thinking) in [("as they are", false), ("with thoughts", true)] {
        let pass = turns(plan, &mut fast, &reference, &conversations, thinking)?;
        rows.push(figures(name, &pass, &mut report));
    }
    let (_, _, refused) = fast.counts();
    ensure!(refused == 0, "the tokenizer was cut where it must not be");
    println!("{}\nall blocks equal those of whole texts and of the reference tokenizer", table(&rows));
    if plan.json {
        println!("{}", report.json());
    }
    Ok(())
}

const TURNS: [&str; 8] =
    ["turns", "count", "text KB", "new KB", "render µs", "next turn µs", "whole µs", "whole/next"];

fn figures(name: &str, pass: &Pass, report: &mut Report) -> Vec<String> {
    let per_turn = |bytes: f64| bytes / 1000.0 / pass.turns.max(1) as f64;
    let mid = |list: &[f64]| median(list.iter().copied());
    let numbers = [
        per_turn(pass.bytes as f64),
        per_turn(pass.encoded as f64),
        mid(&pass.render),
        mid(&pass.next),
        mid(&pass.whole),
        mid(&pass.whole) / mid(&pass.next),
    ];
    let key = name.replace(' ', "_");
    let names = ["text_kb", "new_kb", "render_us", "next_turn_us", "whole_us"];
    for (name, number) in names.iter().zip(numbers) {
        report.value(&format!("{name}_{key}"), number);
    }
    report.ratio(&format!("whole_over_next_{key}"), numbers[5]);
    let cells = numbers.map(|number| format!("{number:.1}"));
    [name.to_owned(), pass.turns.to_string()].into_iter().chain(cells).collect()
}

fn turns(
    plan: &Plan,
    fast: &mut Trial,
    reference: &Trial,
    all: &[Vec<Value>],
    thinking: bool,
) -> Result<Pass> {
    let mut pass = Pass::default();
    let mut cold = Trial::load(&plan.model.clone().unwrap_or_else(|| PathBuf::from(MODEL)), Which::Fast)
        .map_err(|e| anyhow!(e))?;
    fast.forget();
    for messages in all {
        let messages = if thinking { thoughts(messages) } else { messages.clone() };
        let mut last = None;
        for end in ends(&messages) {
            let body = json!({ "messages": messages[..end] }).to_string();
            let (text, render) = timed(|| fast.text(&body))?;
            let before = fast.counts().1;
            let (chain, next) = timed(|| fast.chain(&text, plan.block_size))?;
            cold.forget();
            let (whole, from_nothing) = timed(|| cold.chain(&text, plan.block_size))?;
            let tokens = fast.tokens(&text).map_err(|reason| anyhow!(reason.name()))?;
            let expected = Chain::of(Namespace::default(), plan.block_size, &tokens);
            ensure!(chain == expected && whole == expected, "a turn of {end} messages has other blocks");
            pass.encoded += fast.counts().1 - before;
            pass.turns += 1;
            pass.bytes += text.len();
            let micros = |took: Duration| took.as_secs_f64() * 1e6;
            pass.render.push(micros(render));
            pass.whole.push(micros(from_nothing));
            if last.is_some() {
                pass.next.push(micros(next));
            }
            last = Some((text, chain));
        }
        if let Some((text, chain)) = last {
            let tokens = reference.tokens(&text).map_err(|reason| anyhow!(reason.name()))?;
            ensure!(
                Chain::of(Namespace::default(), plan.block_size, &tokens) == chain,
                "the reference has other blocks"
            );
        }
    }
    Ok(pass)
}

/// Where requests end: before each answer.
fn ends(messages: &[Value]) -> impl Iterator<Item = usize> {
    (1..messages.len()).filter(|end| messages[*end]["role"] == "assistant")
}

/// Each answer with a thought of its own before it, which templates drop later.
fn thoughts(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    for (number, message) in
        messages.iter_mut().enumerate().filter(|(_, message)| message["role"] == "assistant")
    {
        message["reasoning_content"] = json!(words(number, 150));
    }
    messages
}

fn text(trial: &Trial, messages: &[Value]) -> Result<String> {
    let body = json!({ "messages": messages }).to_string();
    trial.text(&body).map_err(|reason| anyhow!("the template: {}", reason.name()))
}

/// Megabytes a second over whole texts, at most `bytes_max` of them.
fn speed(trial: &Trial, texts: &[String], bytes_max: usize) -> Result<f64> {
    let (mut bytes, mut took) = (0, Duration::ZERO);
    for text in texts {
        let (_, time) = timed(|| trial.tokens(text))?;
        bytes += text.len();
        took += time;
        if bytes >= bytes_max {
            break;
        }
    }
    Ok(bytes as f64 / 1e6 / took.as_secs_f64())
}

fn timed<T>(work: impl FnOnce() -> Result<T, state_service::tokenize::Reason>) -> Result<(T, Duration)> {
    let began = Instant::now();
    let done = work().map_err(|reason| anyhow!(reason.name()))?;
    Ok((done, began.elapsed()))
}

fn conversations(plan: &Plan) -> Result<Vec<Vec<Value>>> {
    let Some(path) = &plan.conversations else { return Ok((0..plan.limit).map(generated).collect()) };
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    let list: Vec<Value> = serde_json::from_slice(&bytes).context("not a JSON list")?;
    let messages = |item: &Value| {
        let list =
            item.as_array().or_else(|| item["messages"].as_array()).or_else(|| item["traj"].as_array());
        list.cloned().context("a conversation without messages")
    };
    list.iter().take(plan.limit).map(messages).collect()
}

fn generated(number: usize) -> Vec<Value> {
    let message = |turn: usize| {
        let (role, count) = match turn {
            0 => ("system", 800),
            turn if turn % 2 == 1 => ("user", 60),
            _ => ("assistant", 200),
        };
        json!({ "role": role, "content": words(number * 31 + turn, count) })
    };
    (0..20).map(message).collect()
}

fn words(seed: usize, count: usize) -> String {
    (0..count).map(|n| WORDS[(seed + n * n + n / 7) % WORDS.len()]).collect::<Vec<_>>().join(" ")
}
