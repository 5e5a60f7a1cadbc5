//! What people read: sections, checks with what was seen, and the verdict. Decides nothing.

use std::process::ExitCode;
use std::time::Instant;

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

    /// A check, and what was seen of it.
    pub(crate) fn check(&mut self, what: &str, holds: bool, seen: &str) {
        let word = if holds { "ok  " } else { "FAIL" };
        println!("  {word} {what}: {seen}");
        if holds { self.good += 1 } else { self.bad += 1 }
    }

    /// A line below a check, or of a table.
    pub(crate) fn line(&self, text: &str) {
        println!("       {text}");
    }

    pub(crate) fn is_good(&self) -> bool {
        self.bad == 0 && self.good > 0
    }

    pub(crate) fn verdict(&self) -> ExitCode {
        println!();
        self.say(&format!("{} checks hold, {} do not", self.good, self.bad));
        if self.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
