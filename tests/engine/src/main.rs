//! The fake engine's command line.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use fake_engine::{
    Engine, EngineConfig, HashForm, Kind, KvEndpoint, KvEvents, Mode, Numbering, Role, Version,
};

const FAULTS: &str = "Faults: POST /control/fault {\"fault\":\"VALUE\",\"times\":N}, DELETE clears; or the header `x-fake-fault: VALUE` on one \
request. VALUE: slow=MS, 500, 502, 503, 504, 503-retry-after=S, 429=S, reset, hang, die-mid-stream; only ordered: health-hang, \
health-503.\n\nFaults of cache events: POST /control/kv-events {\"fault\":\"VALUE\",\"rank\":N or null}, GET shows, DELETE heals. VALUE: drop=N (not \
sent, can be replayed), lose=N (nor replayed), duplicate=N, stall or stall=MS, silent, close, open, restart (empty cache, sequence 0), \
tick (an empty batch), fill=N (as if N prompts of 16 blocks had been asked), publish with \"payload\":\"BASE64\" (these bytes as the next \
batch).\n\nMore: tests/engine/README.md.";

/// The wire of a vLLM, SGLang or TensorRT-LLM server without a GPU: ranks, prefix caches, faults on demand.
#[derive(Debug, Parser)]
#[command(name = "fake-engine", version, after_help = FAULTS)]
struct Arguments {
    /// Address to listen on; port 0 lets the kernel choose.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// A second address for /control calls, which allows the port itself to be closed; port 0 lets the kernel choose.
    #[arg(long)]
    control: Option<SocketAddr>,
    /// Data-parallel ranks behind the port.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: u32,
    /// Global number of the first rank.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65_535))]
    dp_start: u32,
    /// Numbers the rank header is read in: 0..ranks, or dp-start..dp-start+ranks.
    #[arg(long, value_enum, default_value_t = Numbering::Local)]
    numbering: Numbering,
    /// Name of the one model served.
    #[arg(long, default_value = "tiny")]
    model: String,
    /// Tokens a cache block.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    block_size: u32,
    /// Blocks each rank's cache holds.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    cache_blocks: u32,
    /// Microseconds of a rank's time per uncached prompt token.
    #[arg(long, default_value_t = 0)]
    prefill_us_per_token: u64,
    /// Microseconds between two tokens of a reply.
    #[arg(long, default_value_t = 0)]
    decode_us_per_token: u64,
    /// Longest prompt plus reply, in tokens.
    #[arg(long, default_value_t = 131_072)]
    max_model_len: usize,
    /// Whose wire it speaks.
    #[arg(long, value_enum, default_value_t = Kind::Vllm)]
    engine: Kind,
    /// In which version, as 0.32.0; without one the newest that is known.
    #[arg(long)]
    engine_version: Option<Version>,
    /// Its part where prompts are computed apart from replies.
    #[arg(long, value_enum, default_value_t = Role::Both)]
    role: Role,
    /// Tensor-parallel ranks: SGLang's metrics repeat each series so often.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    tp_size: u32,
    /// An adapter served besides the model; may be repeated.
    #[arg(long)]
    lora: Vec<String>,
    /// Publish cache events here, tcp://HOST:PORT: rank 0's port, the others count up; port 0 lets the kernel choose (told by
    /// /kv_event_sources, or a free row of ports where the engine tells a base). HOST * is every address.
    #[arg(long)]
    kv_events: Option<KvEndpoint>,
    /// Replay cache events here, in the same way.
    #[arg(long, requires = "kv_events")]
    kv_replay: Option<KvEndpoint>,
    /// First frame of every event message.
    #[arg(long, default_value = "")]
    kv_topic: String,
    /// Batches each rank keeps for replay.
    #[arg(long, default_value_t = 10_000)]
    kv_buffer_steps: usize,
    /// Block hashes in events.
    #[arg(long, value_enum, default_value_t = HashForm::Int)]
    kv_hash: HashForm,
    /// TensorRT-LLM: events each rank keeps for POST /kv_cache_events.
    #[arg(long, conflicts_with = "kv_events")]
    kv_poll: Option<usize>,
    /// Sent back as x-engine-name.
    #[arg(long, default_value = "fake-engine")]
    name: String,
    /// So many engines in this one process, each with ports, ranks and caches of its own: NAME-0, NAME-1, ….
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// File to write the address to, whole or not at all; a second line has that for /control calls. Of several workers each has its
    /// line or lines, in order.
    #[arg(long)]
    addr_file: Option<PathBuf>,
    /// Answer any POST with a constant: for measuring what stands in front.
    #[arg(long)]
    null: bool,
    /// Threads that serve.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
}

impl Arguments {
    fn config(&self) -> EngineConfig {
        EngineConfig {
            listen: self.listen,
            control: self.control,
            name: self.name.clone(),
            model: self.model.clone(),
            ranks: self.ranks,
            dp_start: self.dp_start,
            numbering: self.numbering,
            block_size: self.block_size as usize,
            cache_blocks: self.cache_blocks as usize,
            prefill_us_per_token: self.prefill_us_per_token,
            decode_us_per_token: self.decode_us_per_token,
            max_model_len: self.max_model_len,
            kind: self.engine,
            version: self.engine_version.unwrap_or(self.engine.newest()),
            role: self.role,
            tp_size: self.tp_size,
            mode: if self.null { Mode::Null } else { Mode::Engine },
            loras: self.lora.clone(),
            kv_poll: self.kv_poll,
            kv_events: self.kv_events.clone().map(|endpoint| self.kv(endpoint)),
        }
    }

    /// Each worker's.
    fn configs(&self) -> Vec<EngineConfig> {
        if self.workers == 1 {
            return vec![self.config()];
        }
        let named = |n| EngineConfig { name: format!("{}-{n}", self.name), ..self.config() };
        (0..self.workers).map(named).collect()
    }

    fn kv(&self, endpoint: KvEndpoint) -> KvEvents {
        let (replay, topic) = (self.kv_replay.clone(), self.kv_topic.clone());
        KvEvents { endpoint, replay, topic, buffer_steps: self.kv_buffer_steps, hash: self.kv_hash }
    }
}

fn main() -> ExitCode {
    match start(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line with its causes, never a backtrace: a taken port is no defect. Standard error may be gone.
            let _ = writeln!(std::io::stderr(), "fake-engine: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: &Arguments) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(arguments.threads as usize)
        .enable_all()
        .build()?;
    runtime.block_on(run(arguments))
}

async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut engines = Vec::new();
    for config in arguments.configs() {
        let engine = Engine::spawn(config).await;
        engines.push(engine.with_context(|| format!("cannot listen on {}", arguments.listen))?);
    }
    let addresses = |engine: &Engine| [Some(engine.address()), engine.control_address()];
    if let Some(file) = &arguments.addr_file {
        let lines = engines.iter().flat_map(addresses).flatten().map(|address| address.to_string());
        write_whole(file, &lines.collect::<Vec<_>>().join("\n"))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    for engine in &engines {
        // A reader that is gone is no reason to stop.
        let _ = writeln!(std::io::stdout(), "listening on {}", engine.address());
    }
    let _ = std::io::stdout().flush();
    for engine in engines {
        engine.serve().await;
    }
    Ok(())
}

/// Writes beside the file and renames: a reader sees all of it or nothing.
fn write_whole(file: &Path, text: &str) -> std::io::Result<()> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, file)
}
