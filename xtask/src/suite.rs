//! `test`: everything CI runs, as a list of named steps with a time for each. Stops at the first failure. Does not
//! know how a step is done.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::artifacts::{Artifacts, Profile, build_programs};
use crate::prerequisite::Missing;
use crate::toolchain::{self, Toolchain};
use crate::workspace::Workspace;
use crate::{build_filter, envoy, imports, node_test, process, redis, tidy};

/// Set while the steps run, so that a test which executes the README does not start the suite again.
const RUNNING_VARIABLE: &str = "RANKPIN_TEST_RUNNING";

type Step = (&'static str, fn(&Workspace) -> Result<()>);

/// In the order they run: quick verdicts first, a real Envoy last.
const STEPS: &[Step] = &[
    ("fmt", |workspace| cargo(workspace, &["fmt", "--all", "--check"])),
    ("clippy", |workspace| cargo(workspace, &["clippy", "--all-targets", "--", "-D", "warnings"])),
    ("clippy-filter", clippy_filter),
    ("tidy", |workspace| tidy::command(workspace, &[])),
    ("build", |workspace| build_programs(workspace, Profile::Debug).map(drop)),
    ("build-filter", |workspace| build_filter::command(workspace, &[])),
    ("imports", |workspace| imports::command(workspace, &[])),
    ("routing", |workspace| cargo(workspace, &["test", "-p", "routing"])),
    ("state-service", |workspace| cargo(workspace, &["test", "-p", "state-service"])),
    ("fake-engine", |workspace| cargo(workspace, &["test", "-p", "fake-engine"])),
    ("xtask", |workspace| cargo(workspace, &["test", "-p", "xtask"])),
    ("harness", |workspace| cargo(workspace, &["test", "-p", "e2e", "--lib", "--bins"])),
    ("sim", |workspace| cargo(workspace, &["test", "-p", "e2e", "--test", "sim"])),
    ("wire", |workspace| cargo(workspace, &["test", "-p", "e2e", "--test", "wire"])),
    ("redis", |workspace| redis::command(workspace, &[])),
    ("store", store),
    ("node-test", |workspace| node_test::command(workspace, &[])),
    ("envoy", |workspace| envoy::command(workspace, &[])),
    // Its example is Python, which comes with what `envoy` needs.
    ("hosts", |workspace| cargo(workspace, &["test", "-p", "e2e", "--test", "hosts"])),
    ("live", |workspace| with_envoy(workspace, "live")),
    ("bench-smoke", |workspace| with_envoy(workspace, "bench-smoke")),
    ("readme", |workspace| with_envoy(workspace, "readme")),
];

/// `test [--only STEP,…] [--list]`.
pub(crate) fn command(workspace: &Workspace, args: &[String]) -> Result<()> {
    let chosen = match args {
        [] => STEPS.iter().collect(),
        [flag] if flag == "--list" => return list(),
        [flag, names] if flag == "--only" => choose(names)?,
        _ => return Err(Missing::error("usage: cargo xtask test [--only STEP,…] [--list]")),
    };
    let mut times = Vec::new();
    for (name, run) in chosen {
        process::note(&format!("── {name}"));
        let began = Instant::now();
        let result = run(workspace);
        times.push((*name, began.elapsed()));
        if let Err(error) = result {
            println!("{}", summary(&times, Some(name)));
            return Err(error.context(format!("step `{name}` failed; again: cargo xtask test --only {name}")));
        }
    }
    println!("{}", summary(&times, None));
    Ok(())
}

fn list() -> Result<()> {
    STEPS.iter().for_each(|(name, _)| println!("{name}"));
    Ok(())
}

/// The named steps, in the suite's order.
fn choose(names: &str) -> Result<Vec<&'static Step>> {
    let wanted: Vec<_> = names.split(',').map(str::trim).collect();
    if let Some(unknown) = wanted.iter().find(|name| !STEPS.iter().any(|(step, _)| step == *name)) {
        return Err(Missing::error(format!("there is no step `{unknown}`; see `cargo xtask test --list`")));
    }
    Ok(STEPS.iter().filter(|(name, _)| wanted.contains(name)).collect())
}

/// A line for each step and the closing count.
fn summary(times: &[(&str, Duration)], failed: Option<&str>) -> String {
    let mut text = "\n".to_owned();
    for (name, time) in times {
        let verdict = if failed == Some(name) { "FAILED" } else { "ok" };
        text.push_str(&format!("{name:<14} {:>7.1} s  {verdict}\n", time.as_secs_f64()));
    }
    let failures = usize::from(failed.is_some());
    text.push_str(&format!("{} passed, {failures} failed", times.len() - failures));
    text
}

fn cargo(workspace: &Workspace, args: &[&str]) -> Result<()> {
    process::run(workspace.cargo(args).env(RUNNING_VARIABLE, "1"))
}

/// For wasm where clippy has that target's library. Debian's toolchain has no clippy: there the host's target
/// stands in (nothing is linked), and `build-filter` compiles for wasm.
fn clippy_filter(workspace: &Workspace) -> Result<()> {
    let args = ["clippy", "-p", "filter"];
    let mut clippy = match toolchain::find()? {
        Toolchain::Native => Toolchain::Native.cargo(workspace, &args),
        Toolchain::Debian => workspace.cargo(&args),
    };
    process::run(clippy.args(["--", "-D", "warnings"]))
}

/// A test target of package e2e, told where Envoy, the filter and the programs are.
fn with_envoy(workspace: &Workspace, target: &str) -> Result<()> {
    let artifacts = Artifacts::ensure(workspace, Profile::Debug)?;
    let mut test = workspace.cargo(&["test", "-p", "e2e", "--test", target]);
    artifacts.tell(&mut test);
    if target != "readme" {
        test.env("RANKPIN_REDIS", redis::ensure()?);
    }
    if target == "live" {
        test.env("RANKPIN_TRAP_WASM", build_filter::ensure_trap(workspace)?);
    }
    process::run(test.env(RUNNING_VARIABLE, "1"))
}

/// The store's client against a real server, and replicas of the service on it.
fn store(workspace: &Workspace) -> Result<()> {
    build_programs(workspace, Profile::Debug)?;
    let mut test = workspace.cargo(&["test", "-p", "e2e", "--test", "store"]);
    process::run(test.env("RANKPIN_REDIS", redis::ensure()?).env(RUNNING_VARIABLE, "1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_steps_keep_the_order_of_the_suite() {
        let names: Vec<_> = choose("wire,fmt").unwrap().iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["fmt", "wire"]);
        assert!(choose("fmt,nope").unwrap_err().to_string().contains("nope"));
    }

    #[test]
    fn the_last_line_counts_the_steps() {
        let times = [("fmt", Duration::from_millis(1500)), ("tidy", Duration::ZERO)];
        assert_eq!(summary(&times, None).lines().last(), Some("2 passed, 0 failed"));
        let failed = summary(&times, Some("tidy"));
        assert_eq!(failed.lines().last(), Some("1 passed, 1 failed"));
        assert!(failed.contains("1.5 s  ok") && failed.contains("0.0 s  FAILED"), "{failed}");
    }
}
