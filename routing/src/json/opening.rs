//! How a conversation begins, as a hash: for clients that name their conversation nowhere. Off unless asked for.
//!
//! Raw bytes are hashed, so it costs no second parse; a client that spells its first turn differently later gets another hash.

use xxhash_rust::xxh3::Xxh3;

/// What a place in the document means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// One of the members that open a conversation.
    Part(Part),
    /// One turn.
    Turn,
    /// Who speaks in it.
    Role,
}

/// The top-level members that open a conversation, in the order they are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Model,
    System,
    Instructions,
    Messages,
    Input,
    Prompt,
}

impl Part {
    pub(super) const ALL: [Self; 6] =
        [Self::Model, Self::System, Self::Instructions, Self::Messages, Self::Input, Self::Prompt];

    pub(super) const fn member(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::System => "system",
            Self::Instructions => "instructions",
            Self::Messages => "messages",
            Self::Input => "input",
            Self::Prompt => "prompt",
        }
    }

    /// Whether an array here is a list of turns, read up to the first of a user.
    pub(super) const fn has_turns(self) -> bool {
        matches!(self, Self::Messages | Self::Input)
    }

    /// Whether a value that begins with this byte counts. A list of prompts is a batch, no conversation.
    const fn takes(self, first: u8) -> bool {
        match self {
            Self::Model | Self::System | Self::Instructions => true,
            Self::Messages => first == b'[',
            Self::Input => matches!(first, b'[' | b'"'),
            Self::Prompt => first == b'"',
        }
    }
}

/// The hashes so far, and the part that is being read.
#[derive(Default)]
pub(super) struct Opening {
    digests: [Option<u128>; Part::ALL.len()],
    open: Option<Open>,
}

struct Open {
    part: Part,
    hasher: Box<Xxh3>,
    /// Where in the current chunk the bytes begin that are not hashed yet.
    from: usize,
    /// It is a list of turns: without one of a user it counts for nothing.
    turns: bool,
    /// The turn being read is a user's.
    user: bool,
}

impl std::fmt::Debug for Opening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Opening({})", self.digests.iter().flatten().count())
    }
}

impl Opening {
    /// A marked value begins at `from` of the chunk with the byte `first`.
    pub(super) fn begin(&mut self, mark: Mark, first: u8, from: usize) {
        match (mark, &mut self.open) {
            (Mark::Part(part), _) => {
                // The last of repeated members counts.
                self.put(part, None);
                let (hasher, turns) = (Box::new(Xxh3::new()), first == b'[' && part.has_turns());
                self.open = part.takes(first).then_some(Open { part, hasher, from, turns, user: false });
            }
            (Mark::Turn | Mark::Role, Some(open)) => open.user = false,
            (Mark::Turn | Mark::Role, None) => {}
        }
    }

    /// The role of the turn being read.
    pub(super) fn role(&mut self, role: Option<&[u8]>) {
        if let Some(open) = &mut self.open {
            open.user = role == Some(b"user");
        }
    }

    /// A marked value has ended; `bytes` gives those of the chunk from an offset up to here.
    pub(super) fn end<'a>(&mut self, mark: Mark, bytes: impl Fn(usize) -> &'a [u8]) {
        let Some(open) = &mut self.open else { return };
        let counts = match mark {
            Mark::Part(_) => !open.turns,
            Mark::Turn if open.user => true,
            Mark::Turn | Mark::Role => return,
        };
        open.hasher.update(bytes(open.from));
        let (part, digest) = (open.part, open.hasher.digest128());
        self.open = None;
        if counts {
            self.put(part, Some(digest));
        }
    }

    /// The chunk has ended.
    pub(super) fn flush<'a>(&mut self, bytes: impl Fn(usize) -> &'a [u8]) {
        if let Some(open) = &mut self.open {
            open.hasher.update(bytes(open.from));
            open.from = 0;
        }
    }

    /// The hash of all parts; `None` where no user has spoken.
    pub(super) fn digest(&self) -> Option<u128> {
        let [_, _, _, turns @ ..] = &self.digests;
        turns.iter().any(Option::is_some).then(|| {
            let mut hasher = Xxh3::new();
            for digest in self.digests {
                hasher.update(&[u8::from(digest.is_some())]);
                hasher.update(&digest.unwrap_or_default().to_le_bytes());
            }
            hasher.digest128()
        })
    }

    fn put(&mut self, part: Part, digest: Option<u128>) {
        if let Some(place) = self.digests.get_mut(part as usize) {
            *place = digest;
        }
    }
}
