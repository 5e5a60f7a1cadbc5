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

/// Whether `/v1/responses` reads the rank header: vLLM does from 0.33 on, 0.32 ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponsesRank {
    /// The header chooses the rank (0.33 and later).
    Honoured,
    /// The engine balances by itself, as if there were no header (0.31, 0.32).
    Ignored,
}

/// What the engine does with a POST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Tokens, caches, ranks.
    Engine,
    /// A constant reply to any POST: the cheapest upstream for measuring a proxy.
    Null,
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
    /// See [`ResponsesRank`].
    pub responses_rank: ResponsesRank,
    /// See [`Mode`].
    pub mode: Mode,
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
            responses_rank: ResponsesRank::Honoured,
            mode: Mode::Engine,
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
