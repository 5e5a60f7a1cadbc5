//! Reads a trace file line by line, whatever its format. Owns the limits of lines, and the words for what is wrong with one.

use super::args::Format;
use super::error::ReplayError;
use super::trace::{Full, NODES_MAX, REQUESTS_MAX, Trace};
use super::{mooncake, weka};
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Longest line, in bytes.
const LINE_MAX: u64 = 64 << 20;
/// Largest time in a trace, in milliseconds: a year.
const TIME_MAX: f64 = 366.0 * 86_400_000.0;

/// What is wrong with a line.
pub(super) type Problem = String;

/// Takes lines of a format, one after the other.
pub(super) trait Lines {
    /// Takes a line; `number` counts from 0.
    fn take(&mut self, number: usize, line: &[u8], trace: &mut Option<Trace>) -> Result<(), Problem>;
}

/// Reads a whole file; its lines begin evenly over `spread` milliseconds.
///
/// # Errors
/// It cannot be read, a line is not of the format, or there is no request.
pub(super) fn file(path: &Path, format: Format, spread: u64) -> Result<Trace, ReplayError> {
    let failed = |source: io::Error| ReplayError::File { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(failed)?;
    let gzipped = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gz"));
    let reader: Box<dyn Read> = if gzipped { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    match format {
        Format::Mooncake => {
            let mut trace = lines(path, BufReader::new(reader), &mut mooncake::Reader, spread)?;
            trace.refine();
            Ok(trace)
        }
        Format::Weka => lines(path, BufReader::new(reader), &mut weka::Reader::default(), spread),
    }
}

/// Reads lines; empty ones are passed over.
pub(super) fn lines(
    path: &Path,
    mut from: impl BufRead,
    reader: &mut impl Lines,
    spread: u64,
) -> Result<Trace, ReplayError> {
    let at_line =
        |number: usize, problem| ReplayError::Line { path: path.to_path_buf(), line: number + 1, problem };
    let failed = |source: io::Error| ReplayError::File { path: path.to_path_buf(), source };
    let (mut trace, mut line, mut number) = (None, Vec::new(), 0);
    loop {
        line.clear();
        let read = (&mut from).take(LINE_MAX + 1).read_until(b'\n', &mut line).map_err(failed)?;
        if read == 0 {
            break;
        }
        if line.len() as u64 > LINE_MAX {
            return Err(at_line(number, format!("longer than {LINE_MAX} bytes")));
        }
        if !line.trim_ascii().is_empty() {
            reader.take(number, &line, &mut trace).map_err(|problem| at_line(number, problem))?;
        }
        number += 1;
    }
    let mut trace = trace.filter(|trace: &Trace| !trace.requests.is_empty());
    if let Some(trace) = &mut trace {
        trace.forest.seal();
        trace.spread(spread, number);
    }
    trace.ok_or_else(|| ReplayError::Empty { path: path.to_path_buf() })
}

/// One line as JSON.
pub(super) fn json<'a, T: serde::Deserialize<'a>>(line: &'a [u8]) -> Result<T, Problem> {
    serde_json::from_slice(line).map_err(|error| {
        // serde's "line 1" would be taken for the file's.
        let said = error.to_string();
        let said = said.split(" at line ").next().unwrap_or_default();
        format!("{said} (column {})", error.column())
    })
}

/// A time of the trace in milliseconds; `unit` is a millisecond's worth of it.
pub(super) fn millis(name: &str, value: f64, unit: f64) -> Result<u64, Problem> {
    let ms = (value / unit).round();
    if (0.0..=TIME_MAX).contains(&ms) {
        Ok(ms as u64)
    } else {
        Err(format!("{name} {value} is no time of a trace"))
    }
}

/// Whether there is room for one more request.
pub(super) fn room(trace: &Trace) -> Result<(), Problem> {
    if trace.requests.len() < REQUESTS_MAX {
        Ok(())
    } else {
        Err(format!("more than {REQUESTS_MAX} requests"))
    }
}

impl From<Full> for Problem {
    fn from(_: Full) -> Self {
        format!("more than {NODES_MAX} distinct blocks")
    }
}

/// The full blocks of a prompt of which `listed` are named; a last one that is not full may be among them, or not.
pub(super) fn full_blocks(name: &str, listed: usize, tokens: u32, block_size: u32) -> Result<usize, Problem> {
    let full = tokens as usize / block_size.max(1) as usize;
    let partial = usize::from(!tokens.is_multiple_of(block_size.max(1)));
    if tokens == 0 {
        return Err("a prompt of 0 tokens".to_owned());
    }
    if listed != full && listed != full + partial {
        return Err(format!(
            "{name} names {listed} blocks, a prompt of {tokens} tokens has {} of {block_size}",
            full + partial
        ));
    }
    Ok(full)
}
