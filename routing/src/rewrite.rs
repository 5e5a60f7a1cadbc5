//! Sets the rank in a JSON request body: one top-level field goes in, a client's own rank fields go out, every other byte stays.
//!
//! Checks the whole body as JSON first; what is no JSON object is left alone. Knows no engine.

/// The body with `"field":value` as its first member and without every top-level member named in `removed`; `None` when the body
/// is not a JSON object (UTF-8), which is then to be sent as it is.
#[must_use]
pub fn set_field(body: &[u8], field: &str, value: u32, removed: &[&str]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(body).ok()?;
    let mut scan = Scan { bytes: text.as_bytes(), at: 0 };
    let Members { opened, kept, closed } = scan.members(removed)?;
    let mut new = Vec::with_capacity(body.len() + field.len() + 16);
    new.extend_from_slice(body.get(..opened)?);
    new.extend_from_slice(format!("\"{field}\":{value}").as_bytes());
    for part in kept {
        if part.has_member {
            new.push(b',');
        }
        new.extend_from_slice(body.get(part.from..part.to)?);
    }
    new.extend_from_slice(body.get(closed..)?);
    Some(new)
}

/// A run of members that stay, with the commas between them and the white space around.
struct Part {
    from: usize,
    to: usize,
    has_member: bool,
}

struct Members {
    /// Just after the `{`.
    opened: usize,
    kept: Vec<Part>,
    /// At the last `}`.
    closed: usize,
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    /// The members of the one object there is.
    fn members(&mut self, removed: &[&str]) -> Option<Members> {
        self.space();
        self.take(b'{')?;
        let opened = self.at;
        let mut kept: Vec<Part> = Vec::new();
        self.space();
        if self.peek()? == b'}' {
            kept.push(Part { from: opened, to: self.at, has_member: false });
        } else {
            self.each_member(opened, removed, &mut kept)?;
        }
        let closed = self.at;
        self.take(b'}')?;
        self.space();
        (self.at == self.bytes.len()).then_some(Members { opened, kept, closed })
    }

    fn each_member(&mut self, opened: usize, removed: &[&str], kept: &mut Vec<Part>) -> Option<()> {
        let mut from = opened;
        loop {
            let name = self.member()?;
            let to = self.at;
            let mut before = kept.last_mut().filter(|last| last.to + 1 == from);
            match &mut before {
                _ if removed.iter().any(|own| is_name(name, own)) => {}
                Some(run) => run.to = to,
                None => kept.push(Part { from, to, has_member: true }),
            }
            if self.peek()? == b'}' {
                return Some(());
            }
            self.take(b',')?;
            from = self.at;
        }
    }
}

impl<'a> Scan<'a> {
    /// A member with the white space around it; its name between the quotes, as written.
    fn member(&mut self) -> Option<&'a [u8]> {
        self.space();
        let name = self.name()?;
        self.value()?;
        self.space();
        Some(name)
    }

    /// A member's name and its colon.
    fn name(&mut self) -> Option<&'a [u8]> {
        let name = self.string()?;
        self.space();
        self.take(b':')?;
        Some(name)
    }

    /// Any value. The brackets that are open stand in a list, so that no depth is too deep.
    fn value(&mut self) -> Option<()> {
        let mut open: Vec<u8> = Vec::new();
        loop {
            self.space();
            match self.peek()? {
                b'{' if self.opens(b'}')? => {
                    open.push(b'}');
                    self.name()?;
                    continue;
                }
                b'[' if self.opens(b']')? => {
                    open.push(b']');
                    continue;
                }
                b'{' | b'[' => {}
                b'"' => drop(self.string()?),
                b'-' | b'0'..=b'9' => self.number()?,
                _ => self.word()?,
            }
            if self.closes(&mut open)? {
                return Some(());
            }
        }
    }

    /// Takes an opening bracket, and its closing one where nothing is between: then `false`.
    fn opens(&mut self, closing: u8) -> Option<bool> {
        self.at += 1;
        self.space();
        let is_empty = self.peek()? == closing;
        self.at += usize::from(is_empty);
        Some(!is_empty)
    }

    /// What may follow a value inside `open`: closing brackets, then a comma before the next value. `true` when nothing is open.
    fn closes(&mut self, open: &mut Vec<u8>) -> Option<bool> {
        while let Some(&closing) = open.last() {
            self.space();
            let next = self.peek()?;
            self.at += 1;
            if next == closing {
                open.pop();
                continue;
            }
            if next != b',' {
                return None;
            }
            self.space();
            if closing == b'}' {
                self.name()?;
            }
            return Some(false);
        }
        Some(true)
    }

    /// A string; what stands between its quotes, escapes unread.
    fn string(&mut self) -> Option<&'a [u8]> {
        self.take(b'"')?;
        let from = self.at;
        loop {
            let next = self.peek()?;
            self.at += 1;
            match next {
                b'"' => return self.bytes.get(from..self.at - 1),
                b'\\' => self.escape()?,
                0..0x20 => return None,
                _ => {}
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        let kind = self.peek()?;
        self.at += 1;
        match kind {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => {
                let digits = self.bytes.get(self.at..self.at + 4)?;
                self.at += 4;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(())
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<()> {
        self.skip(b"-");
        if !self.skip(b"0") {
            self.digits()?;
        }
        if self.skip(b".") {
            self.digits()?;
        }
        if self.skip(b"eE") {
            self.skip(b"+-");
            self.digits()?;
        }
        Some(())
    }

    fn digits(&mut self) -> Option<()> {
        let from = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > from).then_some(())
    }

    fn word(&mut self) -> Option<()> {
        let rest = self.bytes.get(self.at..)?;
        let word = [&b"true"[..], b"false", b"null"].into_iter().find(|word| rest.starts_with(word))?;
        self.at += word.len();
        Some(())
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes one byte if it is among these.
    fn skip(&mut self, among: &[u8]) -> bool {
        let is = self.peek().is_some_and(|b| among.contains(&b));
        self.at += usize::from(is);
        is
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        self.skip(&[byte]).then_some(())
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }
}

/// Whether a name as written in JSON says `plain`, which is ASCII without quotes and backslashes.
fn is_name(written: &[u8], plain: &str) -> bool {
    if !written.contains(&b'\\') {
        return written == plain.as_bytes();
    }
    let mut rest = written;
    for &byte in plain.as_bytes() {
        rest = match rest {
            [b'\\', b'u', digits @ ..] if hex(digits) == Some(u16::from(byte)) => {
                digits.get(4..).unwrap_or(&[])
            }
            [first, tail @ ..] if *first == byte => tail,
            _ => return false,
        };
    }
    rest.is_empty()
}

/// The value of four hex digits.
fn hex(digits: &[u8]) -> Option<u16> {
    u16::from_str_radix(std::str::from_utf8(digits.get(..4)?).ok()?, 16).ok()
}
