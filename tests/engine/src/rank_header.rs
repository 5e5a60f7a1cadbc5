//! `X-data-parallel-rank` as vLLM 0.32 reads it: Python's `int()`, then a range check.
//! Owns the parsing and the error's sentence; does not know which endpoints honour the header.

/// What a rank header asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RankAsk {
    /// No header, or one Python's `int()` refuses: the engine balances by itself.
    Any,
    /// A rank of this engine, counted from 0 within it.
    Rank(usize),
    /// An integer, but not a rank: the 400's sentence.
    OutOfRange(String),
}

/// Reads the header's value for ranks `first..first + count`.
#[must_use]
pub(crate) fn read(value: Option<&[u8]>, first: u32, count: u32) -> RankAsk {
    let Some(number) = value.and_then(python_int) else {
        return RankAsk::Any;
    };
    let end = u64::from(first) + u64::from(count);
    let inside = number.parse::<u64>().ok().filter(|n| (u64::from(first)..end).contains(n));
    match inside.and_then(|n| usize::try_from(n - u64::from(first)).ok()) {
        Some(rank) => RankAsk::Rank(rank),
        None => RankAsk::OutOfRange(format!("data_parallel_rank {number} is out of range [{first}, {end}).")),
    }
}

/// Python's `int(text)` over a latin-1 header value, printed as Python prints it; `None` is `ValueError`.
///
/// Accepts surrounding white space, a sign, and single underscores between digits.
#[must_use]
pub(crate) fn python_int(value: &[u8]) -> Option<String> {
    let text: String = value.iter().map(|&byte| char::from(byte)).collect();
    let text = text.trim_matches(python_space);
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let plain = plain_digits(digits)?;
    let number = plain.trim_start_matches('0');
    Some(match (number.is_empty(), negative) {
        (true, _) => "0".to_owned(),
        (false, true) => format!("-{number}"),
        (false, false) => number.to_owned(),
    })
}

/// Digits without their underscores, or `None` where Python refuses them (its limit is 4,300 digits).
fn plain_digits(digits: &str) -> Option<String> {
    let parts: Vec<&str> = digits.split('_').collect();
    let sound = parts.iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    let plain = parts.concat();
    (sound && plain.len() <= 4300).then_some(plain)
}

/// `str.isspace()` within latin-1.
fn python_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests;
