//! What the service is told of a request's prompt, and what it may count for the request until that is over.
//!
//! Where a pool looks for prompts in its engines' caches, a turn that the service places brings its body, or the head of it. Owns how much
//! is kept, and what of it is text; what an engine makes of it is the service's to know. A turn that this VM places alone is not read.

use super::select::{may_read, usual_pool};
use super::{Counter, Effect, Env, Head, Here, RequestFlow};
use crate::config::PoolBy;
use crate::contract::{BODY_BYTES_MAX, Entry, Overlap, Prompt};
use crate::header::http;
use crate::id::RequestId;
use crate::time::Millis;
use crate::vm::{Prompts, Vm};

/// Most bytes of a prompt as JSON writes it inside a question: the service reads [`BODY_BYTES_MAX`], and there is more than the prompt.
pub const PROMPT_WIRE_BYTES_MAX: usize = BODY_BYTES_MAX - (256 << 10);
/// Most bytes that JSON writes for one of a text (`\u0000`).
const ESCAPED_BYTES_MAX: usize = 6;

/// What there is of a request's prompt.
#[derive(Debug, Default)]
pub(super) enum Gathered {
    /// Nobody wanted it yet.
    #[default]
    Unread,
    /// It cannot be had, or has been sent.
    Gone,
    /// This.
    Kept(Kept),
}

/// A body, or its head, as far as it is kept. Counted in its VM until taken out.
#[derive(Debug, Default)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    /// More came than is kept.
    cut: bool,
}

/// What the service may count for a request: whatever was asked for in a pool that goes by caches.
#[derive(Debug)]
pub(super) struct Booked {
    request: RequestId,
    /// The other half, until its prompt is computed.
    prefill: Option<RequestId>,
    /// The answer's first byte was told.
    prefilled: bool,
    /// How much of the prompt the chosen slot has.
    pub(super) overlap: Option<Overlap>,
}

impl Kept {
    /// Keeps a part of the body, `limit` bytes of it at most.
    pub(super) fn push(&mut self, prompts: &mut Prompts, part: &[u8], limit: usize) {
        if self.cut {
            return;
        }
        let room = limit.saturating_sub(self.bytes.len()).min(part.len());
        let kept = prompts.take(room);
        self.bytes.extend_from_slice(part.get(..kept).unwrap_or_default());
        self.cut = kept < part.len();
    }

    /// Whether whatever follows would not be kept.
    pub(super) const fn is_cut(&self) -> bool {
        self.cut
    }

    /// It is not kept any longer. `more`: the body went on.
    pub(super) fn done(mut self, prompts: &mut Prompts, more: bool) -> Self {
        prompts.give_back(self.bytes.len());
        self.cut |= more;
        self
    }

    /// As text, and whether that is all; nothing of what is none.
    fn text(self) -> Option<(String, bool)> {
        let mut text = match String::from_utf8(self.bytes) {
            Ok(text) => text,
            // Cut inside a character.
            Err(error) if self.cut && error.utf8_error().error_len().is_none() => {
                let end = error.utf8_error().valid_up_to();
                let mut bytes = error.into_bytes();
                bytes.truncate(end);
                String::from_utf8(bytes).ok()?
            }
            Err(_) => return None,
        };
        let fits = fits(&text);
        let whole = !self.cut && fits == text.len();
        text.truncate(fits);
        (!text.is_empty()).then_some((text, whole))
    }
}

/// How many bytes of a text may go into a question.
fn fits(text: &str) -> usize {
    if text.len() <= PROMPT_WIRE_BYTES_MAX / ESCAPED_BYTES_MAX {
        return text.len();
    }
    let mut room = PROMPT_WIRE_BYTES_MAX;
    for (at, byte) in text.bytes().enumerate() {
        let written = match byte {
            b'"' | b'\\' | 0x08 | b'\t' | b'\n' | 0x0c | b'\r' => 2,
            0..0x20 => ESCAPED_BYTES_MAX,
            _ => 1,
        };
        if written > room {
            return text.floor_char_boundary(at);
        }
        room -= written;
    }
    text.len()
}

impl RequestFlow {
    /// Whether the turn, which is to be placed by the service, must bring its prompt, and that is yet to be read.
    pub(super) fn must_read_prompt(
        &mut self,
        env: &Env<'_>,
        here: Here<'_>,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> bool {
        let wanted = here.pool.reads_prompt && here.turn.named.is_none();
        // A service that is not asked is not waited for either.
        if !wanted || !matches!(self.prompt, Gathered::Unread) || env.vm.breaker.is_open(env.now) {
            return false;
        }
        if may_read(head) {
            return true;
        }
        self.prompt = Gathered::Gone;
        if head.body_follows() || head.body_hidden() {
            out.push(Effect::Count(Counter::PromptUnread));
        }
        false
    }

    /// Whether there is, or was, a body: what has none has no prompt either.
    pub(super) fn has_prompt(&self, head: &impl Head) -> bool {
        !matches!(self.prompt, Gathered::Unread) || head.body_follows() || head.body_hidden()
    }

    /// The prompt as it goes with the question.
    pub(super) fn take_prompt(
        &mut self,
        here: Here<'_>,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Option<Box<Prompt>> {
        let gathered = std::mem::replace(&mut self.prompt, Gathered::Gone);
        // What was read for its model may be another pool's.
        let (Gathered::Kept(kept), true) = (gathered, here.pool.reads_prompt) else { return None };
        let Some((body, whole)) = kept.text() else {
            out.push(Effect::Count(Counter::PromptUnread));
            return None;
        };
        let path = head.header(http::PATH).unwrap_or_default();
        let path = String::from_utf8_lossy(path.split(|b| *b == b'?').next().unwrap_or_default());
        Some(Box::new(Prompt::Text { path: path.into_owned(), body, whole }))
    }

    /// The service is asked in a pool that goes by caches: from now on it may count the request, and its prefill half, at a slot.
    pub(super) fn book(&mut self, here: Here<'_>, request: RequestId, prefill: Option<RequestId>) {
        if here.pool.is_kv_aware() && !here.turn.dry_run {
            self.booked = Some(Box::new(Booked { request, prefill, prefilled: false, overlap: None }));
        }
    }

    /// The turn goes where the service said, for this reason among others.
    pub(super) fn note_overlap(&mut self, overlap: Option<Overlap>) {
        if let Some(booked) = &mut self.booked {
            booked.overlap = overlap;
        }
    }
}

impl Booked {
    /// Whether the answer's first byte is yet to be told.
    pub(super) const fn awaits_first_byte(&self) -> bool {
        !self.prefilled
    }

    /// The answer's body begins: its prompt is computed.
    pub(super) fn first_byte(&mut self, vm: &mut Vm) {
        if !std::mem::replace(&mut self.prefilled, true) {
            vm.reports.push(Entry::Prefilled { request: self.request });
        }
    }

    /// The answer's head came: the prefill half is over.
    pub(super) fn half_over(&mut self, vm: &mut Vm) {
        if let Some(request) = self.prefill.take() {
            vm.reports.push(Entry::Ended { request });
        }
    }

    /// The request is over, however it ended.
    pub(super) fn ended(mut self, vm: &mut Vm) {
        self.half_over(vm);
        vm.reports.push(Entry::Ended { request: self.request });
    }
}

/// Whether the prompt of a request whose body is read anyway may be wanted, as far as its head tells.
pub(super) fn may_be_wanted(env: &Env<'_>) -> bool {
    let Some(directory) = env.vm.directory.as_ref().filter(|_| !env.vm.breaker.is_open(env.now)) else {
        return false;
    };
    match &env.config.pool_by {
        PoolBy::Only | PoolBy::Fixed(_) => {
            usual_pool(env.config, directory).is_some_and(|pool| pool.reads_prompt)
        }
        PoolBy::Header(_) | PoolBy::Body => directory.pools.iter().any(|pool| pool.reads_prompt),
    }
}

/// How long an answer of the service is waited for.
pub(super) fn deadline(env: &Env<'_>, here: Here<'_>) -> Millis {
    if here.pool.reads_prompt { env.config.route_prompt_deadline } else { env.config.route_deadline }
}
