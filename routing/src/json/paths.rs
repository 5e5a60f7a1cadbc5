//! Which values a reader looks for: JSON pointers as a tree, so that a key is compared only with those that may follow here.

use super::opening::{Mark, Part};

/// Longest pointer, in bytes.
const POINTER_BYTES_MAX: usize = 256;

/// Why a text is no pointer to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    /// It does not begin with `/`.
    #[error("a JSON pointer begins with '/'")]
    NoSlash,
    /// A `~` that is neither `~0` nor `~1`.
    #[error("'~' stands for itself only as '~0', and for '/' as '~1'")]
    Tilde,
    /// Longer than a pointer may be.
    #[error("it is longer than 256 bytes")]
    TooLong,
}

/// The values to look for. Built once, shared by all readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    pointers: Vec<String>,
    nodes: Vec<Node>,
    opening: bool,
}

impl Default for Paths {
    fn default() -> Self {
        Self { pointers: Vec::new(), nodes: vec![Node::default()], opening: false }
    }
}

/// One place in a document that is, or leads to, something wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    edges: Vec<Edge>,
    /// Any element of an array here that no edge names.
    each: Option<usize>,
    /// Where a string that stands here goes.
    pub(super) wanted: Option<usize>,
    /// What a new value here takes away: everything wanted here and below.
    pub(super) beneath: Vec<usize>,
    /// What this place means for the opening of a conversation.
    pub(super) mark: Option<Mark>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Edge {
    segment: Box<[u8]>,
    /// The segment as an index, if it may be one.
    index: Option<usize>,
    node: usize,
}

pub(super) const ROOT: usize = 0;

impl Paths {
    /// A tree of these pointers; repeated ones count once.
    ///
    /// # Errors
    /// The first text that is no pointer.
    pub fn new<'a>(pointers: impl IntoIterator<Item = &'a str>) -> Result<Self, PointerError> {
        let mut paths = Self::default();
        for pointer in pointers {
            paths.add(pointer)?;
        }
        Ok(paths)
    }

    /// Looks for one more value.
    ///
    /// # Errors
    /// The text is no pointer.
    pub fn add(&mut self, pointer: &str) -> Result<(), PointerError> {
        let segments = segments(pointer)?;
        if self.position(pointer).is_some() {
            return Ok(());
        }
        let wanted = self.pointers.len();
        let mut trail = vec![ROOT];
        for segment in segments {
            let parent = trail.last().copied().unwrap_or(ROOT);
            trail.push(self.child_made(parent, segment));
        }
        for at in &trail {
            if let Some(node) = self.nodes.get_mut(*at) {
                node.beneath.push(wanted);
            }
        }
        if let Some(node) = trail.last().and_then(|at| self.nodes.get_mut(*at)) {
            node.wanted = Some(wanted);
        }
        self.pointers.push(pointer.to_owned());
        Ok(())
    }

    /// Also hashes how the conversation begins ([`super::BodyFields::opening`]): costs about as much again as reading it. To be called
    /// after the last [`Self::add`].
    #[must_use]
    pub fn with_opening(mut self) -> Self {
        self.opening = true;
        for part in Part::ALL {
            let at = self.child_made(ROOT, part.member().as_bytes().to_vec());
            self.mark(at, Mark::Part(part));
            if part.has_turns() {
                self.mark_turns(at);
            }
        }
        self
    }

    /// Whether nothing is looked for.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.pointers.is_empty() && !self.opening
    }

    pub(super) const fn len(&self) -> usize {
        self.pointers.len()
    }

    pub(super) const fn wants_opening(&self) -> bool {
        self.opening
    }

    pub(super) fn position(&self, pointer: &str) -> Option<usize> {
        self.pointers.iter().position(|known| known == pointer)
    }

    #[inline]
    pub(super) fn node(&self, at: usize) -> Option<&Node> {
        self.nodes.get(at)
    }

    /// The place of a member.
    pub(super) fn member(&self, at: usize, name: &[u8]) -> Option<usize> {
        let edges = &self.nodes.get(at)?.edges;
        edges.iter().find(|edge| *edge.segment == *name).map(|edge| edge.node)
    }

    /// The place of an element.
    pub(super) fn element(&self, at: usize, index: usize) -> Option<usize> {
        let node = self.nodes.get(at)?;
        let named = node.edges.iter().find(|edge| edge.index == Some(index)).map(|edge| edge.node);
        named.or(node.each)
    }

    fn child_made(&mut self, parent: usize, segment: Vec<u8>) -> usize {
        if let Some(at) = self.member(parent, &segment) {
            return at;
        }
        let at = self.nodes.len();
        self.nodes.push(Node::default());
        if let Some(node) = self.nodes.get_mut(parent) {
            node.edges.push(Edge { index: index_of(&segment), segment: segment.into(), node: at });
        }
        at
    }

    fn mark(&mut self, at: usize, mark: Mark) {
        if let Some(node) = self.nodes.get_mut(at) {
            node.mark = Some(mark);
        }
    }

    /// Marks each element of the array at a place as a turn: the ones that pointers name, and all others.
    fn mark_turns(&mut self, array: usize) {
        let others = self.nodes.len();
        self.nodes.push(Node::default());
        let Some(node) = self.nodes.get_mut(array) else { return };
        node.each = Some(others);
        let named = node.edges.iter().filter(|edge| edge.index.is_some()).map(|edge| edge.node);
        let turns: Vec<usize> = named.chain([others]).collect();
        for turn in turns {
            self.mark(turn, Mark::Turn);
            let role = self.child_made(turn, b"role".to_vec());
            self.mark(role, Mark::Role);
        }
    }
}

/// The unescaped segments of a pointer.
fn segments(pointer: &str) -> Result<Vec<Vec<u8>>, PointerError> {
    if pointer.len() > POINTER_BYTES_MAX {
        return Err(PointerError::TooLong);
    }
    let inside = pointer.strip_prefix('/').ok_or(PointerError::NoSlash)?;
    inside.split('/').map(unescaped).collect()
}

fn unescaped(segment: &str) -> Result<Vec<u8>, PointerError> {
    let mut out = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'~' => match bytes.next() {
                Some(b'0') => b'~',
                Some(b'1') => b'/',
                _ => return Err(PointerError::Tilde),
            },
            plain => plain,
        });
    }
    Ok(out)
}

/// RFC 6901: digits without a leading zero.
fn index_of(segment: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(segment).ok()?;
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}
