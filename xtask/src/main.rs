//! `cargo xtask`: the one place for automation. This file owns the list of commands and the exit codes;
//! each command lives in a module of its own and knows nothing of the others' arguments.
//!
//! Exit codes: 0 done, 1 something failed, 2 a prerequisite is missing or the arguments are wrong.

mod artifacts;
mod build_filter;
mod envoy;
mod imports;
mod launch;
mod module;
mod node_test;
mod prerequisite;
mod process;
mod redis;
mod suite;
mod tidy;
mod toolchain;
mod upgrade;
mod vllm;
mod wasm;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;

use prerequisite::Missing;
use workspace::Workspace;

/// One command of this tool.
struct Command {
    name: &'static str,
    usage: &'static str,
    about: &'static str,
    run: fn(&Workspace, &[String]) -> Result<()>,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "demo",
        usage: "[ARGS]",
        about: "build what is missing and play the demo on a real Envoy (ARGS go to the demo)",
        run: launch::demo,
    },
    Command {
        name: "test",
        usage: "[--only STEP,…] [--list]",
        about: "everything CI runs, in order, with a time for each step",
        run: suite::command,
    },
    Command {
        name: "build-filter",
        usage: "[--out FOLDER | --trap]",
        about: "build the Envoy filter: target/rankpin.wasm, rankpin-body.wasm and rankpin-full.wasm",
        run: build_filter::command,
    },
    Command {
        name: "imports",
        usage: "",
        about: "check what the filter and the wasm tests import from their host",
        run: imports::command,
    },
    Command {
        name: "envoy",
        usage: "",
        about: "print the path of a usable Envoy, fetching one when there is none",
        run: envoy::command,
    },
    Command {
        name: "redis",
        usage: "",
        about: "print the path of a usable Redis or Valkey server, installing Debian's when there is none",
        run: redis::command,
    },
    Command {
        name: "node-test",
        usage: "[ARGS]",
        about: "run the tests of `routing` as wasm under node (ARGS go to the test runner)",
        run: node_test::command,
    },
    Command {
        name: "tidy",
        usage: "",
        about: "check the source rules no compiler knows: rooms, doors, sizes, names",
        run: tidy::command,
    },
    Command {
        name: "bench",
        usage: "NAME [--json] [ARGS]",
        about: "build for release and run one benchmark: pinned, first-turn, failover, json, index, route, tokens, events, store or fleet",
        run: launch::bench,
    },
    Command {
        name: "upgrade",
        usage: "[--from COMMIT] [ARGS]",
        about: "build an earlier commit and check that it and this one work together, both ways round: minutes, by hand",
        run: upgrade::command,
    },
    Command {
        name: "vllm",
        usage: "[--install] [ARGS]",
        about: "install a real vLLM for CPUs (3.4 GB to download) and check rankpin against it: 10 minutes, by hand",
        run: vllm::command,
    },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(if error.is::<Missing>() { 2 } else { 1 })
        }
    }
}

fn dispatch(args: &[String]) -> Result<()> {
    let Some((name, rest)) = args.split_first() else {
        print!("{}", help());
        return Ok(());
    };
    if matches!(name.as_str(), "--help" | "-h" | "help") {
        print!("{}", help());
        return Ok(());
    }
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        return Err(Missing::error(format!("there is no command `{name}`; run `cargo xtask --help`")));
    };
    (command.run)(&Workspace::find()?, rest)
}

fn help() -> String {
    let mut text = "usage: cargo xtask COMMAND\n\n".to_owned();
    for command in COMMANDS {
        let call = format!("{} {}", command.name, command.usage);
        text.push_str(&format!("  {call:<32} {}\n", command.about));
    }
    text.push_str(
        "\nWASM_TOOLCHAIN=auto|native|debian|rustup chooses where the wasm standard library comes from.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_has_one_line_for_each_command() {
        let help = help();
        for command in COMMANDS {
            let lines = help.lines().filter(|line| line.trim_start().starts_with(command.name)).count();
            assert_eq!(lines, 1, "{}", command.name);
        }
    }

    #[test]
    fn an_unknown_command_is_a_usage_error() {
        let error = dispatch(&["no-such".to_owned()]).unwrap_err();
        assert!(error.is::<Missing>());
        assert!(error.to_string().contains("no-such"));
    }
}
