//! What a request says of itself: its key, its pool, what it demands; from its head, and from its body where the config looks there.
//!
//! Owns the question whether the body is needed for that: a key in a header before the first body source answers it with no. Whether the
//! prompt is wanted too shows later, when the turn is to be placed (`prompt`); then the request begins here anew.

use super::prompt::{self, Gathered, Kept};
use super::{
    Counter, Effect, Env, Head, Here, Ignored, LocalReply, Next, RequestFlow, State, models, named, response,
};
use crate::config::{FilterConfig, MODEL, NoTopology, PREVIOUS_RESPONSE, PoolBy, Trust};
use crate::contract::KeyShown;
use crate::directory::{Directory, Pool};
use crate::engine::{CONVERSATION, Surface};
use crate::hash::{self, Phase};
use crate::header;
use crate::json::{BodyFields, Progress, Reader};
use crate::session::{self, Found, Key, Search, Session};
use crate::vm::Vm;
use std::borrow::Cow;

/// Most bytes of a body in which its model is looked for: what the shipped configs let wait (`request_body_buffer_limit`).
const MODEL_BYTES_MAX: usize = 16 << 20;

/// A request whose body is being read.
#[derive(Debug)]
pub(super) struct Reading {
    aim: Aim,
    /// Bytes seen.
    seen: usize,
    /// Nothing that follows changes anything: it is no JSON, or there is no room for it.
    over: bool,
    /// What may go as the prompt, where that may be wanted.
    kept: Option<Kept>,
}

/// What a body is read for.
#[derive(Debug)]
enum Aim {
    /// Keys, models and the like.
    Fields(Box<Reader>),
    /// The prompt alone: what there is of a key was found in the head.
    Prompt(Found),
}

impl Reading {
    fn of(aim: Aim, kept: Option<Kept>) -> Box<Self> {
        Box::new(Self { aim, seen: 0, over: false, kept })
    }

    /// How much of the body is read.
    fn limit(&self, config: &FilterConfig) -> usize {
        match &self.aim {
            // Clients may write the model last, and without it nobody may serve: it is looked for as far as Envoy holds a body.
            Aim::Fields(reader) if config.pool_by == PoolBy::Body && !reader.has(MODEL) => MODEL_BYTES_MAX,
            Aim::Fields(_) | Aim::Prompt(_) => config.prompt_bytes_max,
        }
    }

    fn take(&mut self, env: &mut Env<'_>, part: &[u8]) {
        self.seen += part.len();
        if let Some(kept) = &mut self.kept {
            kept.push(&mut env.vm.prompts, part, env.config.prompt_bytes_max);
        }
        self.over |= match &mut self.aim {
            Aim::Fields(reader) => !self.over && matches!(reader.feed(part), Progress::Faulty(_)),
            Aim::Prompt(_) => self.kept.as_ref().is_none_or(Kept::is_cut),
        };
    }

    /// The request is over before its body is.
    pub(super) fn abandoned(self, vm: &mut Vm) {
        if let Some(kept) = self.kept {
            kept.done(&mut vm.prompts, true);
        }
    }
}

impl RequestFlow {
    /// The request's head. Everything a pinned turn needs happens here.
    pub fn head(&mut self, env: &mut Env<'_>, head: &impl Head, out: &mut Vec<Effect>) -> Next {
        if !matches!(self.state, State::AwaitHead) {
            out.push(Effect::Count(Counter::Ignored(Ignored::SecondHead)));
            return Next::Continue;
        }
        self.turn.surface = surface(head);
        self.turn.has_body = head.body_follows();
        if head.header(header::SPOOFED).is_some() {
            out.push(Effect::Count(Counter::Spoofed));
            out.push(Effect::RemoveHeader(header::SPOOFED.into()));
        }
        if let Err(reply) = self.read_trusted(env.config, head) {
            return self.refuse(reply, Counter::NamedRefused, out);
        }
        self.turn.last = env.config.final_headers.iter().any(|name| says_yes(head, name));
        let search = env.config.sources.in_head(head);
        if wants_body(env.config, self.turn.surface, &search) && may_read(head) {
            let kept = prompt::may_be_wanted(env).then(Kept::default);
            let aim = Aim::Fields(Box::new(env.config.sources.reader()));
            self.state = State::Reading(Reading::of(aim, kept));
            return Next::Read;
        }
        let found = match search {
            Search::Done(found) => found,
            Search::NeedsBody => env.config.sources.with_body(head, &BodyFields::none()),
        };
        self.select(env, head, found, &BodyFields::none(), out)
    }

    /// Bytes of the body that were not shown before; `end`: they are the last.
    pub fn body(
        &mut self,
        env: &mut Env<'_>,
        head: &impl Head,
        chunk: &[u8],
        end: bool,
        out: &mut Vec<Effect>,
    ) -> Next {
        let State::Reading(reading) = &mut self.state else {
            // Placed already, or waiting for the service: then what follows must wait too.
            return if matches!(self.state, State::Routing(_)) { Next::Pause } else { Next::Continue };
        };
        let room = reading.limit(env.config).saturating_sub(reading.seen);
        let (part, cut) = chunk.get(..room).map_or((chunk, false), |part| (part, part.len() < chunk.len()));
        reading.take(env, part);
        if !end && !cut && !reading.over {
            return Next::Read;
        }
        self.read(env, head, !end || cut, out)
    }

    /// The body does not come, or not to its end: decided without it.
    pub fn body_missing(&mut self, env: &mut Env<'_>, head: &impl Head, out: &mut Vec<Effect>) -> Next {
        let reading = match std::mem::replace(&mut self.state, State::AwaitHead) {
            State::Reading(reading) => reading,
            other => {
                self.state = other;
                return Next::Continue;
            }
        };
        out.push(Effect::Count(Counter::BodyMissing));
        self.turn.body_late = true;
        let Reading { aim, kept, .. } = *reading;
        if let Some(kept) = kept {
            kept.done(&mut env.vm.prompts, true);
        }
        self.prompt = Gathered::Gone;
        let (found, fields) = match aim {
            Aim::Prompt(found) => (found, BodyFields::none()),
            // No key from half a body: the next turn's may come whole, and another. The model, though, says who may serve at all.
            Aim::Fields(reader) => (env.config.sources.with_body(head, &BodyFields::none()), reader.so_far()),
        };
        self.select(env, head, found, &fields, out)
    }

    /// The body is read as far as it is read at all.
    fn read(&mut self, env: &mut Env<'_>, head: &impl Head, more: bool, out: &mut Vec<Effect>) -> Next {
        let State::Reading(reading) = std::mem::replace(&mut self.state, State::AwaitHead) else {
            return Next::Continue;
        };
        let Reading { aim, seen, over, kept } = *reading;
        if more && (!over || matches!(aim, Aim::Prompt(_))) {
            out.push(Effect::Count(Counter::BodyTooLong));
        }
        let kept = kept.map(|kept| kept.done(&mut env.vm.prompts, more));
        let mut malformed = false;
        let (found, fields) = match aim {
            Aim::Prompt(found) => (found, BodyFields::none()),
            Aim::Fields(reader) => {
                let fields = match () {
                    () if seen == 0 => BodyFields::none(),
                    () if more && !over => reader.so_far(),
                    () => reader.finish().unwrap_or_else(|_| {
                        malformed = true;
                        BodyFields::none()
                    }),
                };
                (env.config.sources.with_body(head, &fields), fields)
            }
        };
        out.extend(malformed.then_some(Effect::Count(Counter::BodyMalformed)));
        self.prompt = kept.filter(|_| !malformed).map_or(Gathered::Gone, Gathered::Kept);
        self.select(env, head, found, &fields, out)
    }

    /// What only trusted callers may say.
    fn read_trusted(&mut self, config: &FilterConfig, head: &impl Head) -> Result<(), LocalReply> {
        if config.trust == Trust::Nobody {
            return Ok(());
        }
        self.turn.said = named::read(head)?;
        self.turn.demands = named::demands(head)?;
        self.turn.dry_run = says_yes(head, header::DRY_RUN);
        Ok(())
    }

    /// Key and body are known: which pool, which session.
    fn select(
        &mut self,
        env: &mut Env<'_>,
        head: &impl Head,
        found: Found,
        body: &BodyFields,
        out: &mut Vec<Effect>,
    ) -> Next {
        let key = match found {
            Found::TooLong => return self.refuse(LocalReply::key_too_long(), Counter::KeyTooLong, out),
            Found::Nothing => None,
            Found::Key(key) => Some(key),
        };
        let Some(directory) = env.vm.directory.take() else { return self.without_topology(env, out) };
        let chosen = models::pool(env.config, &directory, head, body);
        let stored = match &chosen {
            Err(models::NoPool::NoModel) if env.config.response_ids => {
                response::pool_of(env, head, &directory)
            }
            _ => None,
        };
        let next = match stored.map_or(chosen, |pool| Ok((pool, None))) {
            Ok((pool, model)) => {
                (self.turn.named, self.turn.named_prefill) = self.turn.said.by_half(&directory, pool);
                self.identify(env, pool, model.as_deref(), key.as_ref(), head, body, out);
                let turn = std::mem::take(&mut self.turn);
                let here = Here { directory: &directory, pool, turn: &turn };
                let next = self.decide(env, here, head, out);
                self.turn = turn;
                next
            }
            Err(models::NoPool::Unknown) => self.without_topology(env, out),
            // Nothing that could name a model: health, metrics, a file of the engine's.
            Err(models::NoPool::NoModel) if !self.turn.has_body && self.may_pass() => {
                self.pass(Counter::ModelUnknown, out)
            }
            Err(models::NoPool::NoModel) => {
                let late = self.turn.body_late.then(LocalReply::body_late);
                self.refuse(late.unwrap_or_else(LocalReply::model_missing), Counter::ModelUnknown, out)
            }
            Err(models::NoPool::Answered(reply, why)) => self.refuse(reply, why, out),
        };
        env.vm.directory = Some(directory);
        if next == Next::Read {
            self.read_prompt(key);
        }
        next
    }

    /// The service is to place the turn, and wants its prompt: once that is here all is decided anew, for much may have happened.
    fn read_prompt(&mut self, key: Option<Key>) {
        self.prefill = None;
        self.turn.alias = None;
        let found = key.map_or(Found::Nothing, Found::Key);
        self.state = State::Reading(Reading::of(Aim::Prompt(found), Some(Kept::default())));
    }

    /// Gives the turn its sessions.
    #[expect(clippy::too_many_arguments, reason = "all that a request says meets here")]
    fn identify(
        &mut self,
        env: &mut Env<'_>,
        pool: &Pool,
        model: Option<&str>,
        key: Option<&Key>,
        head: &impl Head,
        body: &BodyFields,
        out: &mut Vec<Effect>,
    ) {
        let config = env.config;
        let scope = session::scope(&config.scope, head);
        // One conversation with three models is three sessions, also inside a pool.
        let place = place_of(pool, model);
        self.turn.demands.model = model.map(str::to_owned);
        if let Some(key) = key {
            let of = |phase| key.session_of(&config.hash_secret, &scope, &place, phase);
            self.turn.session = Some(of(pool.phase));
            self.turn.prefill = pool.prefill.is_some().then(|| of(Phase::Prefill));
            if self.turn.dry_run {
                let session = of(pool.phase).id;
                self.turn.key = Some(KeyShown { source: config.sources.source_word(key), session });
            }
        } else if config.response_ids {
            self.hang_on(env, pool, &scope, head, body);
        }
        if pool.conversations {
            tell_conversation(self.turn.session, key, head, out);
        }
    }

    /// Without a key: the answer that the request is about, or goes on from, names its session; one that begins something new
    /// gets a session of its own, for its own answer to name.
    fn hang_on(&mut self, env: &mut Env<'_>, pool: &Pool, scope: &[u8], head: &impl Head, body: &BodyFields) {
        let path = head.header(header::http::PATH).unwrap_or_default();
        let previous = body.text(PREVIOUS_RESPONSE).map(<[u8]>::to_vec);
        let named = previous.or_else(|| response::in_path(&path).map(<[u8]>::to_vec));
        if let Some(response) = named {
            let alias = hash::response_id(&env.config.hash_secret, scope, &response);
            match response::resolve(env, head, alias) {
                Some(session) => self.turn.belongs(session, pool),
                None => self.turn.alias = Some(alias),
            }
        } else if self.turn.surface == Surface::Responses {
            let minted = [env.vm.caller.vm.0, env.vm.draw(), env.vm.draw()].map(u64::to_le_bytes).concat();
            let id = hash::response_id(&env.config.hash_secret, scope, &minted);
            self.turn.belongs(Session { id, rank_hash: hash::rank_hash(&minted) }, pool);
        }
    }

    /// Whether whoever comes may serve it: passed through, it has no say in who that is.
    pub(super) const fn may_pass(&self) -> bool {
        self.turn.said.is_nothing() && !self.turn.demands.is_strict() && !self.turn.dry_run
    }

    pub(super) fn without_topology(&mut self, env: &Env<'_>, out: &mut Vec<Effect>) -> Next {
        match env.config.on_no_topology {
            NoTopology::PassThrough if self.may_pass() => self.pass(Counter::NoTopology, out),
            _ => self.refuse(LocalReply::no_topology(), Counter::NoTopology, out),
        }
    }
}

/// The pool as part of a session's id, with the model where the listener looks at it.
fn place_of<'a>(pool: &'a Pool, model: Option<&str>) -> Cow<'a, str> {
    model.map_or(Cow::Borrowed(pool.name.as_str()), |model| Cow::Owned(format!("{}/{model}", pool.name)))
}

/// What is asked of the engine, by the path alone: engines take nothing but POST where a path may carry a rank, and reading
/// the method would cost each turn a hostcall.
fn surface(head: &impl Head) -> Surface {
    Surface::of(b"POST", &head.header(header::http::PATH).unwrap_or_default())
}

fn says_yes(head: &impl Head, name: &str) -> bool {
    head.header(name).is_some_and(|value| matches!(value.trim_ascii(), b"1" | b"true" | b"True" | b"TRUE"))
}

fn wants_body(config: &FilterConfig, surface: Surface, search: &Search) -> bool {
    let key = *search == Search::NeedsBody;
    let chain =
        config.response_ids && surface == Surface::Responses && *search == Search::Done(Found::Nothing);
    key || chain || config.pool_by == PoolBy::Body
}

/// Whether there is a body that may be JSON: forms, audio and what is compressed pass unread.
pub(super) fn may_read(head: &impl Head) -> bool {
    let json = |value: &[u8]| {
        let kind = value.split(|b| *b == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
        kind.is_empty() || kind == b"application/json" || kind.ends_with(b"+json")
    };
    head.body_follows()
        && head.header(header::http::METHOD).as_deref() == Some(b"POST")
        && head.header(header::http::CONTENT_TYPE).is_none_or(|value| json(&value))
        && head.header(header::http::CONTENT_ENCODING).is_none_or(|value| value.trim_ascii() == b"identity")
}

/// Engines that go by conversation are told which it is, unless the client says so itself.
fn tell_conversation(session: Option<Session>, key: Option<&Key>, head: &impl Head, out: &mut Vec<Effect>) {
    let Some(session) = session.filter(|_| head.header(CONVERSATION).is_none()) else { return };
    let text = key.and_then(Key::as_sent).map_or_else(|| session.id.to_string(), str::to_owned);
    out.push(Effect::SetHeader(CONVERSATION.into(), text));
}

/// The pool that a listener names, or the only one.
pub(super) fn usual_pool<'a>(config: &FilterConfig, directory: &'a Directory) -> Option<&'a Pool> {
    match &config.pool_by {
        PoolBy::Fixed(name) => directory.pool(Some(name)),
        PoolBy::Only | PoolBy::Header(_) | PoolBy::Body => directory.pool(None),
    }
}
