//! Tests of the replay: readers, cache, figures.

mod caching;
mod made;
mod playing;
mod reading;

use super::args::{Format, ReplayArgs};
use super::error::ReplayError;
use super::trace::Trace;
use super::{mooncake, read, weka};
use clap::Parser;
use std::path::Path;

/// A command line around the arguments.
#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ReplayArgs,
}

/// Arguments as they are written, after `--trace t --format mooncake`.
fn args(text: &str) -> ReplayArgs {
    args_of("mooncake", text)
}

fn args_of(format: &str, text: &str) -> ReplayArgs {
    let words = format!("replay --trace t --format {format} {text}");
    Line::try_parse_from(words.split_whitespace()).unwrap().args
}

/// Reads lines as the file `t`.
fn read(format: Format, text: &str) -> Result<Trace, ReplayError> {
    match format {
        Format::Mooncake => read::lines(Path::new("t"), text.as_bytes(), &mut mooncake::Reader, 0),
        Format::Weka => read::lines(Path::new("t"), text.as_bytes(), &mut weka::Reader::default(), 1000),
    }
}
