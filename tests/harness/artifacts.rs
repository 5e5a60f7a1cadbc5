//! Where Envoy, the filter and our programs are: told by `cargo xtask`, else looked for in the usual places.
//! Builds and fetches nothing.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Ends every complaint about a missing part.
const REMEDY: &str = "run `cargo xtask test`, which builds and fetches what is missing";

/// Root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = env::var_os("RANKPIN_ROOT").map_or_else(here, PathBuf::from);
    root.canonicalize().unwrap_or(root)
}

/// The Envoy to run.
///
/// # Errors
/// There is none; the sentence names the remedy.
pub fn envoy() -> Result<PathBuf> {
    let told = env::var_os("RANKPIN_ENVOY").map(PathBuf::from);
    let path = told.or_else(|| on_path("envoy")).or_else(fetched_envoy);
    found(path, "Envoy")
}

/// The Redis or Valkey server to run.
///
/// # Errors
/// There is none; the sentence names the remedy.
pub fn redis() -> Result<PathBuf> {
    let told = env::var_os("RANKPIN_REDIS").map(PathBuf::from);
    found(told.or_else(|| on_path("redis-server")).or_else(|| on_path("valkey-server")), "Redis server")
}

/// The module whose keys stand in headers.
pub const HEADERS_MODULE: &str = "rankpin.wasm";
/// The module that reads request bodies.
pub const BODY_MODULE: &str = "rankpin-body.wasm";
/// The module that reads request and response bodies.
pub const FULL_MODULE: &str = "rankpin-full.wasm";

/// The built filter, for header keys.
///
/// # Errors
/// There is none; the sentence names the remedy.
pub fn wasm() -> Result<PathBuf> {
    module(HEADERS_MODULE)
}

/// One of the filter's modules, by its file's name.
///
/// # Errors
/// There is none; the sentence names the remedy.
pub fn module(file: &str) -> Result<PathBuf> {
    let folder = env::var_os("RANKPIN_WASM_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    found(Some(folder.join(file)), &format!("filter ({file})"))
}

/// The filter with a trap in it, for tests of what a dying VM costs: never shipped.
///
/// # Errors
/// There is none; the sentence names the remedy.
pub fn trap_wasm() -> Result<PathBuf> {
    let told = env::var_os("RANKPIN_TRAP_WASM").map(PathBuf::from);
    found(
        told.or_else(|| Some(root().join("target/rankpin-trap.wasm"))),
        "filter with a trap (rankpin-trap.wasm)",
    )
}

/// One of our programs: `rankpin`, `fake-engine`.
///
/// # Errors
/// It is not built; the sentence names the remedy.
pub fn program(name: &str) -> Result<PathBuf> {
    let told = env::var_os("RANKPIN_BIN_DIR").map(PathBuf::from);
    let folder = told.or_else(own_folder).unwrap_or_else(|| root().join("target/debug"));
    found(Some(folder.join(name)), &format!("program `{name}`"))
}

/// A folder for tools that a test installs for itself; survives the test.
#[must_use]
pub fn tools() -> PathBuf {
    root().join("target/tools")
}

fn found(path: Option<PathBuf>, what: &str) -> Result<PathBuf> {
    match path {
        Some(path) if path.is_file() => Ok(path),
        Some(path) => bail!("no {what} at {}: {REMEDY}", path.display()),
        None => bail!("no {what} found: {REMEDY}"),
    }
}

/// The folder cargo put this very program in, without its `deps`.
fn own_folder() -> Option<PathBuf> {
    let mut folder = env::current_exe().ok()?.parent()?.to_path_buf();
    if folder.ends_with("deps") {
        folder.pop();
    }
    Some(folder)
}

fn on_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The newest one that `cargo xtask envoy` left.
fn fetched_envoy() -> Option<PathBuf> {
    let folders = tools().read_dir().ok()?.filter_map(Result::ok);
    let mut found: Vec<PathBuf> = folders
        .filter(|folder| folder.file_name().to_string_lossy().starts_with("envoy-"))
        .map(|folder| folder.path().join("envoy"))
        .filter(|path| path.is_file())
        .collect();
    found.sort();
    found.pop()
}
