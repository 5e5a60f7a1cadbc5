//! `demo` and `bench`: build what a run needs, then become the program of package `e2e` that does it. Its exit
//! code is ours; what it prints is its own.

use std::process::Command;

use anyhow::Result;

use crate::artifacts::{Artifacts, Profile, build_programs};
use crate::node_test;
use crate::prerequisite::Missing;
use crate::process;
use crate::redis;
use crate::workspace::Workspace;

/// `demo [ARGS]`.
pub(crate) fn demo(workspace: &Workspace, args: &[String]) -> Result<()> {
    launch(workspace, Profile::Debug, "demo", args)
}

/// `bench NAME [--json] [ARGS]`.
pub(crate) fn bench(workspace: &Workspace, args: &[String]) -> Result<()> {
    if args.first().is_none_or(|name| name.starts_with('-')) {
        return Err(Missing::error(
            "usage: cargo xtask bench pinned|first-turn|failover|json|index|route|tokens|events|store|fleet [--json] [ARGS]",
        ));
    }
    if args.first().is_some_and(|name| name == "json") {
        return bench_json(workspace, args);
    }
    if args.first().is_some_and(|name| name == "index") {
        return bench_index(workspace, args);
    }
    if args.first().is_some_and(|name| name == "tokens" || name == "route") {
        return bench_tokens(workspace, args);
    }
    if args.first().is_some_and(|name| name == "store") {
        return bench_store(workspace, args);
    }
    if args.first().is_some_and(|name| name == "fleet") {
        return bench_fleet(workspace, args);
    }
    launch(workspace, Profile::Release, "bench", args)
}

/// A whole fleet: Envoys, and replicas of the service on a real store.
fn bench_fleet(workspace: &Workspace, args: &[String]) -> Result<()> {
    let redis = redis::ensure()?;
    let artifacts = Artifacts::ensure(workspace, Profile::Release)?;
    let mut command = Command::new(artifacts.program("bench")?);
    artifacts.tell(&mut command);
    command.env("RANKPIN_REDIS", redis).args(args);
    // The trace is named as its caller sees it.
    Err(process::become_program(&mut command))
}

/// Replicas of the service on a real store: no Envoy.
fn bench_store(workspace: &Workspace, args: &[String]) -> Result<()> {
    let redis = redis::ensure()?;
    let programs = build_programs(workspace, Profile::Release)?;
    let mut command = Command::new(programs.join("bench"));
    command.env("RANKPIN_REDIS", redis).env("RANKPIN_BIN_DIR", programs);
    Err(process::become_program(command.args(args).current_dir(&workspace.root)))
}

/// The block index alone: no Envoy, but the index it is measured against.
fn bench_index(workspace: &Workspace, args: &[String]) -> Result<()> {
    let mut build = workspace.cargo(&["build", "--release", "-p", "e2e", "--bin", "bench"]);
    process::run(build.args(["--features", "peers"]))?;
    let mut command = Command::new(workspace.target.join("release").join("bench"));
    Err(process::become_program(command.args(args).current_dir(&workspace.root)))
}

/// The tokenizer or the service alone: no Envoy; files named in `args` are relative to where it was called.
fn bench_tokens(workspace: &Workspace, args: &[String]) -> Result<()> {
    let bench = build_programs(workspace, Profile::Release)?.join("bench");
    Err(process::become_program(Command::new(bench).args(args)))
}

/// The reader alone: no Envoy, but node, and what it runs compiled as the filter is.
fn bench_json(workspace: &Workspace, args: &[String]) -> Result<()> {
    let module = node_test::example(workspace, "read_body")?;
    let bench = build_programs(workspace, Profile::Release)?.join("bench");
    let mut command = Command::new(bench);
    command.env("RANKPIN_READ_BODY_WASM", module).args(args).current_dir(&workspace.root);
    Err(process::become_program(&mut command))
}

fn launch(workspace: &Workspace, profile: Profile, program: &str, args: &[String]) -> Result<()> {
    let artifacts = Artifacts::ensure(workspace, profile)?;
    let mut command = Command::new(artifacts.program(program)?);
    artifacts.tell(&mut command);
    Err(process::become_program(command.args(args).current_dir(&workspace.root)))
}
