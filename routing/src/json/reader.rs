//! The machine that reads a document chunk by chunk.
//!
//! ```text
//!   Value ─"─► Text ─"─┐     Value ─{─► FirstKey ─"─► Text ─"─► Colon ─:─► Value
//!   Value ─1─► Number ─┤     Value ─[─► First ─► Value | ]
//!   Value ─t─► Word ───┴─► After ─,─► Key | Value      After ─} or ]─► After      After at depth 0 = End
//! ```
//! Containers are a bit each; only those on the way to something wanted are known by place (`trail`), the rest is skipped.

use super::DEPTH_MAX;
use super::cursor::Cursor;
use super::fields::{BodyFields, Slot};
use super::number::Number;
use super::opening::{Mark, Opening};
use super::paths::{Node, Paths, ROOT};
use super::text::{Inside, Text};
use std::sync::Arc;

/// Why a document gives nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is not JSON.
    #[error("is not JSON")]
    Malformed,
    /// It ends too early.
    #[error("ends inside a value")]
    Truncated,
    /// More than [`DEPTH_MAX`] containers inside one another.
    #[error("is nested more than {DEPTH_MAX} deep")]
    TooDeep,
}

/// What a reader says of the bytes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The document goes on.
    More,
    /// It is whole; only blanks may follow.
    Whole,
    /// It gives nothing, whatever follows.
    Faulty(Fault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A value comes.
    Value,
    /// The first element of an array, or its end.
    First,
    /// The first member of an object, or its end.
    FirstKey,
    /// A member comes.
    Key,
    /// Its colon comes.
    Colon,
    /// Inside a member's name.
    Name(Inside),
    /// Inside a string.
    Text(Inside),
    /// Inside a number.
    Number(Number),
    /// Inside `true`, `false` or `null`: what is still to come.
    Word(&'static [u8]),
    /// Behind a value.
    After,
}

/// A container on the way to something wanted.
#[derive(Clone, Copy, Debug)]
struct Step {
    node: usize,
    /// Index of the element being read, in an array.
    index: usize,
}

/// Reads one document. Memory: the wanted values, each at most [`super::VALUE_BYTES_MAX`], whatever the document.
#[derive(Debug)]
pub struct Reader {
    paths: Arc<Paths>,
    state: State,
    /// Bit `n`: container `n` is an object.
    objects: u128,
    depth: usize,
    trail: Vec<Step>,
    /// Place of the value that comes or is being read.
    here: Option<usize>,
    text: Text,
    slots: Vec<Slot>,
    opening: Option<Opening>,
    fault: Option<Fault>,
}

impl Reader {
    /// A reader that looks for these.
    #[must_use]
    pub fn new(paths: &Arc<Paths>) -> Self {
        Self {
            paths: Arc::clone(paths),
            state: State::Value,
            objects: 0,
            depth: 0,
            trail: Vec::new(),
            here: Some(ROOT),
            text: Text::default(),
            slots: vec![Slot::Absent; paths.len()],
            opening: paths.wants_opening().then(Opening::default),
            fault: None,
        }
    }

    /// Reads the next bytes.
    pub fn feed(&mut self, chunk: &[u8]) -> Progress {
        if self.fault.is_none() {
            let mut cursor = Cursor::new(chunk);
            self.fault = self.run(&mut cursor).err();
            if let Some(opening) = &mut self.opening {
                opening.flush(|from| cursor.since(from));
            }
        }
        match self.fault {
            Some(fault) => Progress::Faulty(fault),
            None if self.is_whole() => Progress::Whole,
            None => Progress::More,
        }
    }

    /// What was found. The document ends here.
    ///
    /// # Errors
    /// It is no whole JSON document; then nothing found before the fault counts.
    pub fn finish(mut self) -> Result<BodyFields, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if let State::Number(number) = self.state
            && number.is_whole()
        {
            self.state = State::After;
        }
        if !self.is_whole() {
            return Err(Fault::Truncated);
        }
        let opening = self.opening.and_then(|opening| opening.digest());
        Ok(BodyFields::new(self.paths, self.slots, opening))
    }

    /// Whether a string stands at a pointer so far.
    #[must_use]
    pub fn has(&self, pointer: &str) -> bool {
        let slot = self.paths.position(pointer).and_then(|at| self.slots.get(at));
        matches!(slot, Some(Slot::Text(_)))
    }

    /// What was found so far, of a document that goes on where nobody looks: values that would be repeated later stand as they are.
    /// Nothing of a faulty one.
    #[must_use]
    pub fn so_far(self) -> BodyFields {
        if self.fault.is_some() {
            return BodyFields::none();
        }
        let opening = self.opening.and_then(|opening| opening.digest());
        BodyFields::new(self.paths, self.slots, opening)
    }

    fn is_whole(&self) -> bool {
        self.depth == 0 && self.state == State::After
    }

    fn run(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        while cursor.peek().is_some() {
            match self.state {
                State::Name(inside) => self.name(inside, cursor)?,
                State::Text(inside) => self.string(inside, cursor)?,
                State::Number(number) => self.number(number, cursor)?,
                State::Word(rest) => self.word(rest, cursor)?,
                _ => {
                    cursor.skip_blanks();
                    if let Some(byte) = cursor.next() {
                        self.token(byte, cursor)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A byte between values.
    fn token(&mut self, byte: u8, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        match (self.state, byte) {
            (State::After, b',') => self.comma(),
            (State::Colon, b':') => {
                self.state = State::Value;
                Ok(())
            }
            (State::FirstKey | State::Key, b'"') => {
                self.text.begin(self.is_known());
                self.state = State::Name(Inside::Plain);
                Ok(())
            }
            (State::After | State::FirstKey, b'}') => self.close(true, cursor),
            (State::After | State::First, b']') => self.close(false, cursor),
            (State::Value | State::First, _) => self.value(byte, cursor),
            _ => Err(Fault::Malformed),
        }
    }

    /// Whether the innermost container is on the way to something wanted.
    fn is_known(&self) -> bool {
        self.depth == self.trail.len()
    }

    fn comma(&mut self) -> Result<(), Fault> {
        if self.depth == 0 {
            return Err(Fault::Malformed);
        }
        if self.in_object() {
            self.state = State::Key;
            return Ok(());
        }
        self.state = State::Value;
        if self.is_known()
            && let Some(step) = self.trail.last_mut()
        {
            step.index += 1;
            self.here = self.paths.element(step.node, step.index);
        }
        Ok(())
    }

    fn in_object(&self) -> bool {
        self.depth > 0 && self.objects >> (self.depth - 1) & 1 == 1
    }

    /// A value begins with this byte.
    fn value(&mut self, byte: u8, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        if let Some(at) = self.here {
            self.begin(at, byte, cursor);
        }
        match byte {
            b'"' => {
                let keeps = self.node().is_some_and(|n| n.wanted.is_some() || n.mark == Some(Mark::Role));
                self.text.begin(keeps);
                self.state = State::Text(Inside::Plain);
            }
            b'{' | b'[' => return self.open(byte == b'{'),
            b't' => self.state = State::Word(b"rue"),
            b'f' => self.state = State::Word(b"alse"),
            b'n' => self.state = State::Word(b"ull"),
            _ => self.state = State::Number(Number::begin(byte).ok_or(Fault::Malformed)?),
        }
        Ok(())
    }

    fn node(&self) -> Option<&Node> {
        self.here.and_then(|at| self.paths.node(at))
    }

    /// A value begins at a known place: what stood there or below is gone.
    fn begin(&mut self, at: usize, byte: u8, cursor: &Cursor<'_>) {
        let Some(node) = self.paths.node(at) else { return };
        for wanted in &node.beneath {
            if let Some(slot) = self.slots.get_mut(*wanted) {
                *slot = Slot::Absent;
            }
        }
        if let (Some(mark), Some(opening)) = (node.mark, &mut self.opening) {
            opening.begin(mark, byte, cursor.at() - 1);
        }
    }

    fn open(&mut self, object: bool) -> Result<(), Fault> {
        if self.depth == DEPTH_MAX {
            return Err(Fault::TooDeep);
        }
        self.objects = self.objects & !(1 << self.depth) | u128::from(object) << self.depth;
        self.state = if object { State::FirstKey } else { State::First };
        if let Some(node) = self.here {
            self.trail.push(Step { node, index: 0 });
            self.here = if object { None } else { self.paths.element(node, 0) };
        }
        self.depth += 1;
        Ok(())
    }

    fn close(&mut self, object: bool, cursor: &Cursor<'_>) -> Result<(), Fault> {
        if self.depth == 0 || self.in_object() != object {
            return Err(Fault::Malformed);
        }
        self.here = if self.is_known() { self.trail.pop().map(|step| step.node) } else { None };
        self.depth -= 1;
        self.ended(cursor);
        Ok(())
    }

    /// The value at `here` has ended.
    fn ended(&mut self, cursor: &Cursor<'_>) {
        self.state = State::After;
        if let Some(mark) = self.node().and_then(|node| node.mark)
            && let Some(opening) = &mut self.opening
        {
            opening.end(mark, |from| cursor.since(from));
        }
        self.here = None;
    }

    fn name(&mut self, inside: Inside, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        if let Some(inside) = self.text.read(inside, cursor)? {
            self.state = State::Name(inside);
            return Ok(());
        }
        self.state = State::Colon;
        self.here = match (self.text.bytes(), self.trail.last()) {
            (Some(name), Some(step)) => self.paths.member(step.node, name),
            _ => None,
        };
        Ok(())
    }

    fn string(&mut self, inside: Inside, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        if let Some(inside) = self.text.read(inside, cursor)? {
            self.state = State::Text(inside);
            return Ok(());
        }
        if let Some((wanted, mark)) = self.node().map(|node| (node.wanted, node.mark)) {
            if let Some(slot) = wanted.and_then(|wanted| self.slots.get_mut(wanted)) {
                *slot = self.text.slot();
            }
            if let (Some(Mark::Role), Some(opening)) = (mark, &mut self.opening) {
                opening.role(self.text.bytes());
            }
        }
        self.ended(cursor);
        Ok(())
    }

    fn number(&mut self, number: Number, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        let mut number = number;
        while let Some(byte) = cursor.peek() {
            match number.next(byte) {
                Some(next) => number = next,
                None if number.is_whole() => {
                    self.ended(cursor);
                    return Ok(());
                }
                None => return Err(Fault::Malformed),
            }
            cursor.skip(1);
        }
        self.state = State::Number(number);
        Ok(())
    }

    fn word(&mut self, rest: &'static [u8], cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        let Some((expected, rest)) = rest.split_first() else { return Err(Fault::Malformed) };
        if cursor.next() != Some(*expected) {
            return Err(Fault::Malformed);
        }
        if rest.is_empty() {
            self.ended(cursor);
        } else {
            self.state = State::Word(rest);
        }
        Ok(())
    }
}
