//! `node-test`: the tests of `routing`, compiled to wasm and run by node. Knows the runner that goes with our
//! wasm-bindgen; does not know the tests.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::imports;
use crate::prerequisite::{Missing, apt_install, can_apt_install};
use crate::process;
use crate::toolchain::{self, Toolchain};
use crate::workspace::Workspace;

const RUNNER: &str = "wasm-bindgen-test-runner";
const RUNNER_VARIABLE: &str = "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER";
/// Unit tests and integration tests, without doctests.
const TESTS: &[&str] = &["test", "-p", "routing", "--lib", "--tests"];

/// `node-test [ARGS]`.
pub(crate) fn command(workspace: &Workspace, args: &[String]) -> Result<()> {
    let toolchain = toolchain::find()?;
    ensure_node()?;
    let runner = ensure_runner(workspace)?;
    compile_with(workspace, toolchain)?;
    let mut test = toolchain.cargo(workspace, TESTS);
    test.env(RUNNER_VARIABLE, runner).arg("--").args(args);
    let mut passed = 0;
    process::run_seeing(&mut test, |line| passed += passed_in(line))?;
    if args.is_empty() {
        compare(passed, native_count(workspace)?)?;
    }
    Ok(())
}

/// Compiles the tests and checks their imports; the modules are what cargo made.
pub(crate) fn compile(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    compile_with(workspace, toolchain::find()?)
}

/// An example of `routing` as wasm that node can run, compiled as the filter is.
pub(crate) fn example(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    let toolchain = toolchain::find()?;
    ensure_node()?;
    let args = ["build", "-p", "routing", "--example", name, "--profile", "filter"];
    process::run(&mut toolchain.cargo(workspace, &args)).context("compiling an example of routing")?;
    let folder = toolchain::build_folder(workspace).join(toolchain::TARGET).join("filter");
    Ok(folder.join("examples").join(format!("{name}.wasm")))
}

fn compile_with(workspace: &Workspace, toolchain: Toolchain) -> Result<Vec<PathBuf>> {
    if !toolchain::build_folder(workspace).join(toolchain::TARGET).join("debug").is_dir() {
        process::note("compiling the tests of routing for wasm (about a minute the first time)");
    }
    let mut args = TESTS.to_vec();
    args.extend(["--no-run", "--message-format=json-render-diagnostics"]);
    let mut build = toolchain.cargo(workspace, &args);
    build.stderr(std::process::Stdio::inherit());
    let modules = executables(&process::capture(&mut build).context("compiling the tests of routing")?);
    for module in &modules {
        imports::check_tests(&std::fs::read(module)?).with_context(|| module.display().to_string())?;
    }
    Ok(modules)
}

/// Paths of test programs in cargo's JSON messages.
fn executables(messages: &str) -> Vec<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message.get("executable")?.as_str().map(PathBuf::from))
        .collect()
}

fn ensure_node() -> Result<()> {
    if process::on_path("node").is_some() {
        return Ok(());
    }
    if can_apt_install() {
        return apt_install(&["nodejs"]);
    }
    Err(Missing::error(
        "the wasm tests run under node, and there is none: install Node.js 20 or later (Debian: `nodejs`)",
    ))
}

/// The runner of exactly our wasm-bindgen's version, installed below `target/tools` once.
fn ensure_runner(workspace: &Workspace) -> Result<PathBuf> {
    let lock = std::fs::read_to_string(workspace.root.join("Cargo.lock")).context("reading Cargo.lock")?;
    let version = locked_version(&lock, "wasm-bindgen").context("Cargo.lock names no wasm-bindgen")?;
    let folder = workspace.target.join("tools").join(format!("wasm-bindgen-{version}"));
    let runner = folder.join("bin").join(RUNNER);
    if !process::is_executable(&runner) {
        install_runner(workspace, version, &folder)?;
    }
    if !process::is_executable(&runner) {
        bail!("cargo installed no {RUNNER} to {}", folder.display());
    }
    Ok(runner)
}

fn install_runner(workspace: &Workspace, version: &str, folder: &Path) -> Result<()> {
    process::note(&format!("installing {RUNNER} {version} (once; about five minutes of one core)"));
    let package = format!("wasm-bindgen-cli@{version}");
    let mut cargo =
        workspace.cargo(&["install", &package, "--no-default-features", "--bin", RUNNER, "--root"]);
    // Its own target folder, so that it does not hold the lock of our builds.
    cargo.arg(folder).env("CARGO_TARGET_DIR", folder.join("build"));
    process::run(&mut cargo).with_context(|| format!("installing {RUNNER}"))?;
    // Three hundred megabytes nobody needs again.
    let _ = std::fs::remove_dir_all(folder.join("build"));
    Ok(())
}

/// Version of a package in the text of a Cargo.lock.
fn locked_version<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name).skip(1);
    lines.next()?.strip_prefix("version = \"")?.strip_suffix('"')
}

/// How many tests a line like `test result: ok. 7 passed; 0 failed; …` counts.
fn passed_in(line: &str) -> usize {
    let Some((_, counts)) = line.split_once("test result: ok. ") else { return 0 };
    counts.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// How many tests `routing` has natively.
fn native_count(workspace: &Workspace) -> Result<usize> {
    let mut args = TESTS.to_vec();
    args.extend(["--quiet", "--", "--list"]);
    let listing = process::capture(&mut workspace.cargo(&args))?;
    Ok(listing.lines().filter(|line| line.ends_with(": test")).count())
}

/// A test that plain `#[test]` marks is silently left out of the wasm run: say how many, and fail when all are.
fn compare(under_node: usize, native: usize) -> Result<()> {
    println!("under node {under_node} of the {native} native tests of routing ran");
    if native > 0 && under_node == 0 {
        bail!("no test ran under node: mark them with the alias of wasm_bindgen_test (routing/tests)");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locked_version_is_that_of_the_exact_name() {
        let lock = "[[package]]\nname = \"wasm-bindgen-macro\"\nversion = \"0.1.0\"\n\n\
                    [[package]]\nname = \"wasm-bindgen\"\nversion = \"0.2.130\"\n";
        assert_eq!(locked_version(lock, "wasm-bindgen"), Some("0.2.130"));
        assert_eq!(locked_version(lock, "wasm"), None);
    }

    #[test]
    fn test_programs_are_found_among_cargo_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"executable\":\"/t/a.wasm\"}\nnoise\n";
        assert_eq!(executables(messages), [PathBuf::from("/t/a.wasm")]);
    }

    #[test]
    fn passed_tests_are_counted() {
        assert_eq!(passed_in("test result: ok. 12 passed; 0 failed; 0 ignored"), 12);
        assert_eq!(passed_in("running 12 tests"), 0);
    }

    #[test]
    fn no_test_under_node_is_a_failure_when_there_are_native_ones() {
        compare(0, 0).unwrap();
        compare(3, 4).unwrap();
        assert!(compare(0, 4).is_err());
    }
}
