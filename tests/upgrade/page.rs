//! What people read: parts, a table of checks with what was seen, and the verdict. Decides nothing.

use std::process::ExitCode;
use std::time::Instant;

/// Width of the column that says what is checked.
const WHAT: usize = 46;

/// See the module.
#[derive(Debug)]
pub(crate) struct Page {
    began: Instant,
    good: u32,
    bad: u32,
}

impl Page {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), good: 0, bad: 0 }
    }

    /// A line of progress.
    pub(crate) fn say(&self, text: &str) {
        println!("[{:>4} s] {text}", self.began.elapsed().as_secs());
    }

    /// A heading.
    pub(crate) fn section(&self, text: &str) {
        println!();
        self.say(text);
    }

    /// A row: a check, and what was seen of it.
    pub(crate) fn check(&mut self, what: &str, holds: bool, seen: &str) {
        let word = if holds { "ok  " } else { "FAIL" };
        println!("  {word} {what:<WHAT$} {seen}");
        if holds { self.good += 1 } else { self.bad += 1 }
    }

    /// A row of which nothing is promised.
    pub(crate) fn figure(&self, what: &str, seen: &str) {
        println!("       {what:<WHAT$} {seen}");
    }

    /// A line of its own.
    pub(crate) fn line(&self, text: &str) {
        println!("\n{text}");
    }

    /// How many checks did not hold so far.
    pub(crate) const fn bad(&self) -> u32 {
        self.bad
    }

    pub(crate) fn verdict(&self) -> ExitCode {
        println!();
        self.say(&format!("{} checks hold, {} do not", self.good, self.bad));
        if self.bad == 0 && self.good > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
