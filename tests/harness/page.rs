//! What people read of checks made by hand (`cargo xtask vllm`, `cargo xtask upgrade`): sections, checks with what was seen, and the
//! verdict. Decides nothing.

use std::process::ExitCode;
use std::time::Instant;

/// Width of the column that says what is checked; what is longer pushes the rest of its row along.
const WHAT: usize = 46;

/// See the module.
#[derive(Debug)]
pub struct Page {
    began: Instant,
    good: u32,
    bad: u32,
}

impl Page {
    /// Begins now.
    #[must_use]
    pub fn new() -> Self {
        Self { began: Instant::now(), good: 0, bad: 0 }
    }

    /// A line of progress.
    pub fn say(&self, text: &str) {
        println!("[{:>4} s] {text}", self.began.elapsed().as_secs());
    }

    /// A heading.
    pub fn section(&self, text: &str) {
        println!();
        self.say(text);
    }

    /// A check, and what was seen of it.
    pub fn check(&mut self, what: &str, holds: bool, seen: &str) {
        let word = if holds { "ok  " } else { "FAIL" };
        println!("  {word} {what:<WHAT$} {seen}");
        if holds { self.good += 1 } else { self.bad += 1 }
    }

    /// The same of which nothing is promised.
    pub fn figure(&self, what: &str, seen: &str) {
        self.line(&format!("{what:<WHAT$} {seen}"));
    }

    /// A line below a check, or of a table.
    pub fn line(&self, text: &str) {
        println!("       {text}");
    }

    /// How many checks did not hold so far.
    #[must_use]
    pub const fn bad(&self) -> u32 {
        self.bad
    }

    /// Whether all checks held so far, and there was one.
    #[must_use]
    pub const fn is_good(&self) -> bool {
        self.bad == 0 && self.good > 0
    }

    /// Says how many held.
    #[must_use]
    pub fn verdict(&self) -> ExitCode {
        println!();
        self.say(&format!("{} checks hold, {} do not", self.good, self.bad));
        if self.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl Default for Page {
    fn default() -> Self {
        Self::new()
    }
}
