//! How each engine takes a data-parallel rank: which paths read one, in a header or in the body, under which name.
//!
//! Pure tables, from released sources of vLLM, SGLang and TensorRT-LLM. Knows neither workers nor sessions. Where a path does not
//! read a rank, none is sent and none is counted: the engine balances by itself there.

use crate::contract::{Engine, RankIn, RankNumbering};
use crate::header;

/// The header TensorRT-LLM takes a conversation's id from; the conversation picks the rank there.
pub const CONVERSATION: &str = "x-session-id";
/// Names of the rank in a body: SGLang's before 0.5.10 and from there on. A client's own are removed with the first rewrite.
pub const BODY_FIELDS: [&str; 2] = [BODY_RANK, BODY_ROUTED_RANK];
/// SGLang's field from 0.4.9 on; newer ones take it still.
const BODY_RANK: &str = "data_parallel_rank";
/// Its name from 0.5.10 on.
const BODY_ROUTED_RANK: &str = "routed_dp_rank";

/// A released version of an engine, as far as it decides anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release(pub u32, pub u32, pub u32);

impl Release {
    /// Reads `0.32.0`, `v0.11.1`, `0.5.10.post1`, `0.33.0rc1`, `0.33`; what follows the third number says nothing here.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let mut parts = text.strip_prefix(['v', 'V']).unwrap_or(text).splitn(4, '.');
        let major = parts.next()?.parse().ok()?;
        let (minor, whole) = leading_number(parts.next()?)?;
        let patch = parts.next().filter(|_| whole).and_then(leading_number).map_or(0, |(number, _)| number);
        Some(Self(major, minor, patch))
    }
}

/// The digits in front, and whether there was nothing else.
fn leading_number(text: &str) -> Option<(u32, bool)> {
    let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    Some((text.get(..end)?.parse().ok()?, end == text.len()))
}

/// What a request asks of an engine, as far as ranks are concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Surface {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/chat/completions/batch` (vLLM)
    ChatBatch,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/messages`
    Messages,
    /// `POST /v1/responses`
    Responses,
    /// `POST /inference/v1/generate` (vLLM)
    TokensIn,
    /// `POST /generate` (SGLang)
    Generate,
    /// Anything else: embeddings, audio, score, rerank, models, a stored response, …
    #[default]
    Other,
}

impl Surface {
    /// Reads method and path. A prefix in front of the path (a gateway's, or the engine's root path) does not matter, nor does a
    /// query behind it.
    #[must_use]
    pub fn of(method: &[u8], path: &[u8]) -> Self {
        if method != b"POST" {
            return Self::Other;
        }
        let end = path.iter().position(|&b| b == b'?').unwrap_or(path.len());
        let path = path.get(..end).unwrap_or(path);
        const BY_END: [(&[u8], Surface); 7] = [
            (b"/v1/chat/completions", Surface::Chat),
            (b"/v1/chat/completions/batch", Surface::ChatBatch),
            (b"/v1/completions", Surface::Completions),
            (b"/v1/messages", Surface::Messages),
            (b"/v1/responses", Surface::Responses),
            // Before the shorter one that it ends with.
            (b"/inference/v1/generate", Surface::TokensIn),
            (b"/generate", Surface::Generate),
        ];
        BY_END.iter().find(|(own, _)| path.ends_with(own)).map_or(Self::Other, |(_, surface)| *surface)
    }
}

/// A rank as it goes on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OnWire {
    /// No rank: the engine takes none here, or has only one.
    #[default]
    Nothing,
    /// A request header.
    Header {
        /// Its name.
        name: &'static str,
        /// Plain ASCII digits: engines read `1_0` as ten.
        value: String,
    },
    /// A top-level field of the JSON body.
    Body {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: u32,
    },
}

/// What of an engine decides how a rank travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The engine.
    pub engine: Engine,
    /// Its version, if it was declared. Undeclared is read as current, but under [`RankIn::Body`] as older than 0.5.10.
    pub release: Option<Release>,
    /// Where SGLang shall find the rank.
    pub rank_in: RankIn,
}

impl Dialect {
    /// From a worker's declaration; a version that is none is as if undeclared.
    #[must_use]
    pub fn new(engine: Engine, version: Option<&str>, rank_in: RankIn) -> Self {
        Self { engine, release: version.and_then(Release::parse), rank_in }
    }

    /// Whether a rank sent with such a request chooses the rank that serves.
    #[must_use]
    pub fn honours_rank(&self, surface: Surface) -> bool {
        self.name_in_body(surface).is_some() || self.reads_header(surface)
    }

    /// The rank `number` (as the endpoint counts) on such a request.
    #[must_use]
    pub fn on_wire(&self, surface: Surface, number: u32) -> OnWire {
        match self.name_in_body(surface) {
            Some(name) => OnWire::Body { name, value: number },
            None if self.reads_header(surface) => {
                OnWire::Header { name: header::VLLM_RANK, value: number.to_string() }
            }
            None => OnWire::Nothing,
        }
    }

    /// Whether the engine wants to be told the conversation instead of a rank.
    #[must_use]
    pub fn wants_conversation(&self) -> bool {
        self.engine == Engine::Trtllm
    }

    fn reads_header(&self, surface: Surface) -> bool {
        let since = match self.engine {
            Engine::Vllm => vllm_reads_header_since(surface),
            Engine::Sglang => sglang_reads_header_since(surface),
            Engine::Trtllm => None,
            // Nothing is known of it: its endpoints say themselves whether they want one.
            Engine::Custom => return true,
        };
        since.is_some_and(|since| self.is_since(since))
    }

    /// SGLang's body field on such a request, where the worker wants it there and the engine reads it.
    fn name_in_body(&self, surface: Surface) -> Option<&'static str> {
        let in_body = self.engine == Engine::Sglang && self.rank_in == RankIn::Body;
        let since = if in_body { sglang_reads_body_since(surface)? } else { return None };
        let reads = self.release.is_none_or(|own| own >= since);
        let renamed = self.release.is_some_and(|own| own >= SGLANG_HEADER);
        reads.then_some(if renamed { BODY_ROUTED_RANK } else { BODY_RANK })
    }

    fn is_since(&self, since: Release) -> bool {
        match self.release {
            Some(own) => own >= since,
            None => self.rank_in == RankIn::Header,
        }
    }
}

/// vLLM's `X-data-parallel-rank`; never read by embeddings, pooling, score, rerank, classify and audio.
const fn vllm_reads_header_since(surface: Surface) -> Option<Release> {
    match surface {
        Surface::Chat | Surface::Completions | Surface::Messages => Some(Release(0, 11, 1)),
        Surface::ChatBatch => Some(Release(0, 20, 0)),
        Surface::TokensIn => Some(Release(0, 22, 0)),
        Surface::Responses => Some(Release(0, 33, 0)),
        Surface::Generate | Surface::Other => None,
    }
}

/// The first SGLang that reads the header, and calls its body field `routed_dp_rank`.
const SGLANG_HEADER: Release = Release(0, 5, 10);

const fn sglang_reads_header_since(surface: Surface) -> Option<Release> {
    match surface {
        Surface::Chat | Surface::Completions | Surface::Messages => Some(SGLANG_HEADER),
        Surface::Responses => Some(Release(0, 5, 20)),
        Surface::ChatBatch | Surface::TokensIn | Surface::Generate | Surface::Other => None,
    }
}

const fn sglang_reads_body_since(surface: Surface) -> Option<Release> {
    match surface {
        Surface::Generate => Some(Release(0, 4, 9)),
        Surface::Chat | Surface::Completions => Some(Release(0, 5, 7)),
        _ => None,
    }
}

/// A global rank as an endpoint counts that starts at `dp_start`; `None` where it wants none told, or the rank is not there.
#[must_use]
pub fn number(numbering: RankNumbering, dp_start: u32, rank: u32) -> Option<u32> {
    match numbering {
        RankNumbering::Global => Some(rank),
        RankNumbering::Local => rank.checked_sub(dp_start),
        RankNumbering::None => None,
    }
}

/// Whether `engine` in this version reads a rank on such a request: from the header, or where `rank_in` says.
#[must_use]
pub fn honours_rank(
    engine: Engine,
    version: Option<&str>,
    rank_in: RankIn,
    method: &str,
    path: &str,
) -> bool {
    Dialect::new(engine, version, rank_in).honours_rank(Surface::of(method.as_bytes(), path.as_bytes()))
}
