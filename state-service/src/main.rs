//! The `rankpin` binary: reads the command line, sets up the log, and is the only place that ends the process.

use clap::Parser;
use state_service::cli::{Cli, Command, ExplainArgs, HashArgs, LogFormat, ServeArgs, hash_lines};
use state_service::replay::{self, ReplayArgs};
use state_service::{ask, serve};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Requests are short and many, and each takes and gives back dozens of small blocks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What was asked cannot be done as asked; the same as a wrong flag.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => run(&args),
        Command::Hash(args) => hash(&args),
        Command::Explain(args) => explain(&args),
        Command::Replay(args) => replay(&args),
    }
}

fn explain(args: &ExplainArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.to_string()),
    };
    match runtime.block_on(ask::explain(args)) {
        Ok(said) => {
            let _ = writeln!(std::io::stdout(), "{said}");
            ExitCode::SUCCESS
        }
        Err(error) if error.is_usage() => refuse(&error.to_string()),
        Err(error) => fail(&error.to_string()),
    }
}

fn replay(args: &ReplayArgs) -> ExitCode {
    match replay::run(args) {
        Ok(figures) => {
            let mut out = std::io::stdout();
            let _ = writeln!(out, "{figures}");
            if args.json {
                let _ = writeln!(out, "{}", figures.json());
            }
            ExitCode::SUCCESS
        }
        Err(error) if error.is_usage() => refuse(&error.to_string()),
        Err(error) => fail(&error.to_string()),
    }
}

fn hash(args: &HashArgs) -> ExitCode {
    match hash_lines(args) {
        Ok(lines) => {
            // A reader that went away (`| head`) is no failure of ours.
            let _ = writeln!(std::io::stdout(), "{lines}");
            ExitCode::SUCCESS
        }
        Err(error) => refuse(&format!("pool {error}")),
    }
}

fn run(args: &ServeArgs) -> ExitCode {
    log_to_stderr(args.log_format);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.to_string()),
    };
    let ended = runtime.block_on(serve::run(args));
    // Blocking tasks (a resolver that hangs) may not hold up the end.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_usage() => refuse(&error.to_string()),
        Err(error) => fail(&error.to_string()),
    }
}

fn refuse(sentence: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "rankpin: {sentence}");
    ExitCode::from(EXIT_USAGE)
}

fn fail(sentence: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "rankpin: {sentence}");
    ExitCode::FAILURE
}

fn log_to_stderr(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}
