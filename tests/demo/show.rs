//! What people see: tables, bars, addresses. Counts nothing but what it prints.

use std::io::IsTerminal;
use std::time::Duration;

use e2e::World;
use e2e::client::{CHAT, SESSION};

use crate::play::{Joining, Played, Told};
use crate::text;

/// Conversations shown of a way whose table says little.
const SAMPLE: usize = 5;
/// Characters of a full bar.
const BAR: u64 = 40;

/// One of the three ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Rankpin,
    NoSession,
    RoundRobin,
}

impl Way {
    const fn title(self) -> &'static str {
        match self {
            Self::Rankpin => "rankpin: every turn carries x-session-id",
            Self::NoSession => "the same Envoy, no session header",
            Self::RoundRobin => "plain round robin, straight to the workers",
        }
    }

    const fn short(self) -> &'static str {
        match self {
            Self::Rankpin => "rankpin",
            Self::NoSession => "no session header",
            Self::RoundRobin => "round robin",
        }
    }
}

/// Where it is printed.
#[derive(Debug)]
pub(crate) struct Page {
    colour: bool,
}

impl Page {
    pub(crate) fn new() -> Self {
        Self { colour: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() }
    }

    pub(crate) fn say(&self, line: &str) {
        println!("{line}");
    }

    pub(crate) fn workers(&self, world: &World) {
        let ranks = ["ranks 0-3", "ranks 4-7", "a single rank, declared by the API while traffic runs"];
        for (engine, ranks) in world.engines.iter().zip(ranks) {
            println!("  {}  {}  {ranks}", self.bold(engine.name()), engine.address());
        }
    }

    /// A row a conversation: where each turn ran, and how much of its prompt was found there.
    pub(crate) fn way(&self, way: Way, played: &[Played], all: bool) {
        println!("\n{}", self.bold(way.title()));
        println!("  {}", self.dim("worker/rank cached/prompt tokens of each turn"));
        let heads = (1..=text::TURNS).map(|turn| format!("{:<14}", format!("turn {turn}")));
        println!("  {:<13}{}", "session", self.dim(&heads.collect::<String>()));
        let shown = if all { played.len() } else { SAMPLE.min(played.len()) };
        for one in &played[..shown] {
            let cells: String = one.turns.iter().map(|turn| self.cell(turn, &one.turns[0])).collect();
            println!("  {:<13}{}", one.name, cells.trim_end());
        }
        if shown < played.len() {
            println!(
                "  {}",
                self.dim(&format!("… {} more like these (--all shows them)", played.len() - shown))
            );
        }
    }

    pub(crate) fn joined(&self, joining: &Joining) {
        let meanwhile = joining.turns_meanwhile;
        match joining.first_turn_after {
            Some(after) => println!(
                "  w2 served its first conversation {:.1} s after its PUT; {meanwhile} turns were answered meanwhile",
                after.as_secs_f64()
            ),
            None => println!("  w2 is known, but no new conversation came to it in these few seconds"),
        }
    }

    /// The answer to the demo's question.
    pub(crate) fn ratios(&self, ways: &[(Way, &[Played])]) {
        println!("\n{}", self.bold("prompt tokens found in a rank's cache"));
        println!(
            "  {}",
            self.dim(&format!("{:<19}{:<50}{:>9}{:>13}", "", "turns 2 to 6", "all turns", "median turn"))
        );
        for (way, played) in ways {
            let later = percent(played.iter().flat_map(|one| one.turns.iter().skip(1)));
            let whole = percent(played.iter().flat_map(|one| &one.turns));
            let bar = self.bar(later, *way);
            println!("  {:<19}{bar} {later:>4} %   {whole:>8} %{:>10} ms", way.short(), median_ms(played));
        }
    }

    pub(crate) fn look(&self, world: &World) {
        let (control, admin) = (world.service.control(), world.envoy().admin_address());
        println!("\n{}", self.bold("while it runs"));
        for (what, url) in [
            ("OpenAI base URL", format!("http://{}/v1", world.envoy().address())),
            ("workers", format!("http://{control}/v1/workers")),
            ("metrics", format!("http://{control}/metrics")),
            ("API document", format!("http://{control}/openapi.json")),
            ("Envoy's counters", format!("http://{admin}/stats?filter=rankpin.requests")),
        ] {
            println!("  {what:<18}{url}");
        }
        let warm = "no_worker, no_topology and rolled_back among Envoy's counters are from the start, before the first turn";
        println!("  {}", self.dim(warm));
    }

    pub(crate) fn by_hand(&self, world: &World) {
        let (envoy, control) = (world.envoy().address(), world.service.control());
        println!("\n{}", self.bold("try it by hand"));
        println!(
            "  curl -si http://{envoy}{CHAT} -H '{SESSION}: mine' -H 'content-type: application/json' \\"
        );
        println!(
            r#"    -d '{{"model":"tiny","messages":[{{"role":"user","content":"Who keeps the lamp?"}}]}}'"#
        );
        println!("  {}", self.dim("the answer's x-engine-name and x-engine-rank say who served; repeat it and look at cached_tokens"));
        println!(
            "  curl -s -X DELETE http://{control}/v1/workers/NAME   {}",
            self.dim("# NAME: that x-engine-name; repeat the first line, and the session has moved, once")
        );
        println!("\nCtrl-C ends it.");
    }

    pub(crate) fn verdict(&self, kept: bool, took: Duration) {
        let sentence = match kept {
            true => self.green("every turn with a key went to its slot"),
            false => self.red("some turn with a key left its slot: see the table"),
        };
        println!("\n{sentence} ({:.1} s in all)", took.as_secs_f64());
    }

    fn cell(&self, turn: &Told, first: &Told) -> String {
        let text = format!("{:<14}", format!("{} {}/{}", turn.slot, turn.cached, turn.prompt));
        match turn.slot == first.slot {
            true if turn.cached * 2 > turn.prompt => self.green(&text),
            true => text,
            false if turn.cached * 2 > turn.prompt => text,
            false => self.red(&text),
        }
    }

    fn bar(&self, percent: u64, way: Way) -> String {
        let full = usize::try_from(percent * BAR / 100).unwrap_or(0);
        let rest = usize::try_from(BAR).unwrap_or(0).saturating_sub(full);
        let bar = format!("{}{}", "█".repeat(full), "░".repeat(rest));
        if way == Way::Rankpin { self.green(&bar) } else { bar }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn bold(&self, text: &str) -> String {
        self.paint("1", text)
    }

    fn dim(&self, text: &str) -> String {
        self.paint("2", text)
    }

    fn green(&self, text: &str) -> String {
        self.paint("32", text)
    }

    fn red(&self, text: &str) -> String {
        self.paint("31", text)
    }
}

/// Cached of all prompt tokens.
fn percent<'a>(turns: impl Iterator<Item = &'a Told>) -> u64 {
    let (cached, prompt) =
        turns.fold((0, 0), |(cached, prompt), turn| (cached + turn.cached, prompt + turn.prompt));
    (cached * 100).checked_div(prompt).unwrap_or(0)
}

fn median_ms(played: &[Played]) -> u128 {
    let mut times: Vec<Duration> =
        played.iter().flat_map(|one| one.turns.iter().map(|turn| turn.took)).collect();
    times.sort();
    times.get(times.len() / 2).map_or(0, Duration::as_millis)
}
