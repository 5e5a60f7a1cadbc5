//! What a fake engine is started with. Owns the defaults; does not know the command line.

use std::net::SocketAddr;

/// Which numbers `X-data-parallel-rank` is read in (engines differ by frontend and balancing mode).
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Numbering {
    /// `0..ranks`, as vLLM's Python frontend under hybrid balancing.
    Local,
    /// `dp_start..dp_start + ranks`, as vLLM's Rust frontend and internal balancing.
    Global,
}

/// Whose wire it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// vLLM: rank by header.
    Vllm,
    /// SGLang: rank by header or body, by version.
    Sglang,
    /// TensorRT-LLM: no rank; a conversation picks it.
    Trtllm,
}

/// A version, `major.minor.patch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl std::str::FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
        match numbers.as_deref() {
            Some([major, minor, patch]) => Ok(Self(*major, *minor, *patch)),
            _ => Err("a version is three numbers, as in 0.33.0".to_owned()),
        }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl Kind {
    /// The newest version whose wire is known.
    #[must_use]
    pub const fn newest(self) -> Version {
        match self {
            Self::Vllm => Version(0, 33, 0),
            Self::Sglang => Version(0, 5, 23),
            Self::Trtllm => Version(1, 2, 0),
        }
    }

    /// Its name in `owned_by` and fingerprints.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Trtllm => "tensorrt_llm",
        }
    }
}

/// Its part in a deployment that computes prompts apart from replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Both, as usual.
    #[default]
    Both,
    /// Computes prompts for others.
    Prefill,
    /// Has prompts computed by the engine that `x-prefiller-host-port` names.
    Decode,
}

/// What the engine does with a POST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Tokens, caches, ranks.
    Engine,
    /// A constant reply to any POST: the cheapest upstream for measuring a proxy.
    Null,
}

/// How block hashes look in events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum HashForm {
    /// 64 bits as a number.
    #[default]
    Int,
    /// 32 bytes, the last eight of which are that number.
    Bytes,
}

/// `tcp://HOST:PORT` of a socket each rank has: rank 0's, or port 0 for ports the kernel chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEndpoint {
    /// An address, or `*` for all.
    pub host: String,
    /// Ranks count up from here.
    pub port: u16,
}

impl std::str::FromStr for KvEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
        let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
        match parts {
            Some((host, port)) if !host.is_empty() => Ok(Self { host: host.to_owned(), port }),
            _ => Err("an endpoint is tcp://HOST:PORT".to_owned()),
        }
    }
}

/// How cache events are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEvents {
    /// The PUB sockets.
    pub endpoint: KvEndpoint,
    /// The ROUTER sockets that replay.
    pub replay: Option<KvEndpoint>,
    /// First frame of every message.
    pub topic: String,
    /// Batches kept for replay.
    pub buffer_steps: usize,
    /// See [`HashForm`].
    pub hash: HashForm,
}

impl KvEvents {
    /// On free loopback ports, with replay, as vLLM keeps and writes them by default.
    #[must_use]
    pub fn loopback() -> Self {
        let endpoint = KvEndpoint { host: "127.0.0.1".to_owned(), port: 0 };
        let replay = Some(endpoint.clone());
        Self { endpoint, replay, topic: String::new(), buffer_steps: 10_000, hash: HashForm::Int }
    }
}

/// Everything a fake engine can be told before it starts.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Where to listen; port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// Where `/control/…` is answered as well, also while the port is closed; port 0 lets the kernel choose. Without
    /// one the port cannot be closed.
    pub control: Option<SocketAddr>,
    /// Sent back as `x-engine-name`.
    pub name: String,
    /// The one model served.
    pub model: String,
    /// Ranks behind the port, at least 1.
    pub ranks: u32,
    /// Global number of the first rank.
    pub dp_start: u32,
    /// How the rank header is read.
    pub numbering: Numbering,
    /// Tokens a cache block, at least 1.
    pub block_size: usize,
    /// Blocks each rank's prefix cache holds, at least 1.
    pub cache_blocks: usize,
    /// Microseconds of a rank's time per uncached prompt token.
    pub prefill_us_per_token: u64,
    /// Microseconds between two generated tokens of one request.
    pub decode_us_per_token: u64,
    /// Longest prompt plus reply, in tokens.
    pub max_model_len: usize,
    /// Whose wire it speaks.
    pub kind: Kind,
    /// In which version.
    pub version: Version,
    /// See [`Role`].
    pub role: Role,
    /// How often SGLang's metrics repeat each rank's series, once a tensor-parallel rank.
    pub tp_size: u32,
    /// See [`Mode`].
    pub mode: Mode,
    /// Adapters served besides the model, by their own names.
    pub loras: Vec<String>,
    /// How cache events are published, if they are.
    pub kv_events: Option<KvEvents>,
    /// TensorRT-LLM: events each rank keeps for `POST /kv_cache_events`, unless they are published.
    pub kv_poll: Option<usize>,
}

impl EngineConfig {
    /// The command line's defaults on a free loopback port.
    #[must_use]
    pub fn new(ranks: u32) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            control: None,
            name: "fake-engine".to_owned(),
            model: "tiny".to_owned(),
            ranks,
            dp_start: 0,
            numbering: Numbering::Local,
            block_size: 16,
            cache_blocks: 4096,
            prefill_us_per_token: 0,
            decode_us_per_token: 0,
            max_model_len: 131_072,
            kind: Kind::Vllm,
            version: Kind::Vllm.newest(),
            role: Role::Both,
            tp_size: 1,
            mode: Mode::Engine,
            loras: Vec::new(),
            kv_events: None,
            kv_poll: None,
        }
    }

    /// The first number the rank header may carry.
    #[must_use]
    pub fn first_header_rank(&self) -> u32 {
        match self.numbering {
            Numbering::Local => 0,
            Numbering::Global => self.dp_start,
        }
    }
}
