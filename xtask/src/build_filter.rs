//! `build-filter`: compiles the filter for wasm, drops the exports Envoy should not call, optimises, checks what
//! is left. Owns the table of kept exports. Does not know what the filter does in them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::imports;
use crate::prerequisite::{Missing, apt_install, can_apt_install};
use crate::process;
use crate::toolchain::{self, TARGET};
use crate::wasm;
use crate::workspace::Workspace;

/// Exports the shipped module keeps. The SDK exports every callback there is; Envoy crosses into the VM for each
/// one it finds, so a callback the filter does not implement costs a call per request, and
/// `proxy_on_response_body` one per streamed chunk. What is not named here is dropped: bodies, trailers, TCP, gRPC,
/// queues, foreign functions.
const KEPT_EXPORTS: &[&str] = &[
    "memory",
    "_initialize",
    "_start",
    "proxy_abi_version_0_2_1",
    "proxy_on_memory_allocate",
    "malloc",
    "proxy_on_context_create",
    "proxy_on_vm_start",
    "proxy_on_configure",
    "proxy_on_tick",
    "proxy_on_request_headers",
    "proxy_on_response_headers",
    "proxy_on_http_call_response",
    "proxy_on_delete",
];

/// Without one of each of these no Envoy could use the module.
const NEEDED_EXPORTS: &[&[&str]] = &[
    &["memory"],
    &["proxy_abi_version_0_2_1"],
    &["malloc", "proxy_on_memory_allocate"],
    &["proxy_on_context_create"],
    &["proxy_on_vm_start"],
    &["proxy_on_configure"],
    &["proxy_on_request_headers"],
];

/// The built filter.
#[derive(Debug)]
pub(crate) struct Filter {
    pub(crate) path: PathBuf,
    imports: Vec<String>,
    bytes_compiled: u64,
    bytes_shipped: u64,
}

/// `build-filter [--out FILE | --trap]`.
pub(crate) fn command(workspace: &Workspace, args: &[String]) -> Result<()> {
    let out = match args {
        [] => None,
        [flag, file] if flag == "--out" => Some(PathBuf::from(file)),
        [flag] if flag == "--trap" => {
            println!("{}", ensure_trap(workspace)?.display());
            return Ok(());
        }
        _ => return Err(Missing::error("usage: cargo xtask build-filter [--out FILE | --trap]")),
    };
    let mut filter = ensure(workspace)?;
    if let Some(out) = out {
        write_whole(&out, &std::fs::read(&filter.path)?)?;
        filter.path = out;
    }
    println!(
        "{}: {} KB (compiled: {} KB)",
        filter.path.display(),
        kilobytes(filter.bytes_shipped),
        kilobytes(filter.bytes_compiled)
    );
    println!("imports, all from Envoy: {}", filter.imports.join(" "));
    Ok(())
}

/// The filter with a trap for tests (`tests/trap`): the same sources, exports as shipped, not optimised any further.
pub(crate) fn ensure_trap(workspace: &Workspace) -> Result<PathBuf> {
    let compiled = std::fs::read(compile(workspace, "filter-trap", "filter_trap.wasm")?)?;
    let path = workspace.target.join("rankpin-trap.wasm");
    write_whole(&path, &wasm::retain_exports(&compiled, is_kept)?)?;
    Ok(path)
}

/// Builds what is not up to date; quick when nothing changed.
pub(crate) fn ensure(workspace: &Workspace) -> Result<Filter> {
    let compiled = std::fs::read(compile(workspace, "filter", "filter.wasm")?)?;
    let path = workspace.target.join("rankpin.wasm");
    let optimiser = find_optimiser()?;
    let recipe_file = toolchain::build_folder(workspace).join("rankpin.recipe");
    let recipe = |shipped: &[u8]| recipe(&compiled, shipped, optimiser.as_deref());
    let shipped = match std::fs::read(&path) {
        Ok(shipped) if std::fs::read_to_string(&recipe_file).is_ok_and(|old| old == recipe(&shipped)) => {
            shipped
        }
        _ => {
            let shipped = ship(workspace, &compiled, optimiser.as_deref())?;
            write_whole(&path, &shipped)?;
            write_whole(&recipe_file, recipe(&shipped).as_bytes())?;
            shipped
        }
    };
    let imports = imports::check_filter(&shipped)?;
    Ok(Filter { path, imports, bytes_compiled: compiled.len() as u64, bytes_shipped: shipped.len() as u64 })
}

fn compile(workspace: &Workspace, package: &str, file: &str) -> Result<PathBuf> {
    let toolchain = toolchain::find()?;
    let folder = toolchain::build_folder(workspace).join(TARGET).join("filter");
    let file = folder.join(file);
    if !file.is_file() {
        process::note("compiling the filter for wasm (about a minute the first time)");
    }
    let mut build = toolchain.cargo(workspace, &["build", "-p", package, "--profile", "filter"]);
    process::run(&mut build).context("compiling the filter")?;
    Ok(file)
}

/// What the module is shipped as: fewer exports, then whatever only they reached removed.
fn ship(workspace: &Workspace, compiled: &[u8], optimiser: Option<&Path>) -> Result<Vec<u8>> {
    let exports = wasm::exports(compiled)?;
    check_exports(&exports)?;
    let stripped = wasm::retain_exports(compiled, is_kept)?;
    let Some(optimiser) = optimiser else { return Ok(stripped) };
    let folder = toolchain::build_folder(workspace);
    let input = folder.join(format!("strip-{}.wasm", std::process::id()));
    let output = folder.join(format!("opt-{}.wasm", std::process::id()));
    std::fs::write(&input, &stripped)?;
    let mut command = Command::new(optimiser);
    command.args(["--all-features", "-O4", "--converge", "--strip-debug", "--strip-producers"]);
    let result = process::run(command.arg(&input).arg("-o").arg(&output));
    let shipped = result.and_then(|()| Ok(std::fs::read(&output)?));
    // Not there after a failure: nothing to say about it.
    let _ = (std::fs::remove_file(&input), std::fs::remove_file(&output));
    shipped
}

fn is_kept(export: &str) -> bool {
    KEPT_EXPORTS.contains(&export)
}

fn check_exports(exports: &[String]) -> Result<()> {
    let there = |name: &&str| exports.iter().any(|export| export == name);
    let lacking: Vec<_> = NEEDED_EXPORTS
        .iter()
        .filter(|names| !names.iter().any(there))
        .map(|names| names.join(" or "))
        .collect();
    if !lacking.is_empty() {
        bail!("no Envoy would load this filter: it does not export {}", lacking.join(", "));
    }
    Ok(())
}

/// binaryen's wasm-opt; without it the module is larger and otherwise the same.
fn find_optimiser() -> Result<Option<PathBuf>> {
    if let Some(found) = process::on_path("wasm-opt") {
        return Ok(Some(found));
    }
    if can_apt_install() {
        apt_install(&["binaryen"])?;
        return Ok(process::on_path("wasm-opt"));
    }
    process::note("no wasm-opt here: the filter is larger than it could be (install `binaryen`)");
    Ok(None)
}

/// Everything the shipped module depends on; the same text means there is nothing to do.
fn recipe(compiled: &[u8], shipped: &[u8], optimiser: Option<&Path>) -> String {
    format!("{}\n{}\n{optimiser:?}\n{}\n", hex_sha256(compiled), hex_sha256(shipped), KEPT_EXPORTS.join(" "))
}

/// SHA-256 in lower case hex.
pub(crate) fn hex_sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a file so that others see the old one or the new one, never a part.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut temporary = path.to_owned().into_os_string();
    temporary.push(format!(".{}", std::process::id()));
    std::fs::write(&temporary, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    std::fs::rename(&temporary, path).with_context(|| format!("cannot write {}", path.display()))
}

fn kilobytes(bytes: u64) -> u64 {
    bytes.div_ceil(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_kept() {
        assert!(NEEDED_EXPORTS.iter().flat_map(|names| names.iter()).all(|name| is_kept(name)));
    }

    #[test]
    fn costly_callbacks_are_dropped_and_needed_ones_kept() {
        for dropped in ["proxy_on_response_body", "proxy_on_request_body", "proxy_on_upstream_data"] {
            assert!(!is_kept(dropped), "{dropped}");
        }
        assert!(is_kept("proxy_on_http_call_response"));
    }

    #[test]
    fn a_module_no_envoy_would_load_is_refused() {
        let needed: Vec<_> =
            NEEDED_EXPORTS.iter().flat_map(|names| names.first()).map(|name| (*name).to_owned()).collect();
        check_exports(&needed).unwrap();
        let error = check_exports(&needed[..1]).unwrap_err().to_string();
        assert!(error.contains("proxy_abi_version_0_2_1"), "{error}");
    }

    #[test]
    fn the_recipe_changes_with_each_ingredient() {
        let recipes = [
            recipe(b"a", b"b", None),
            recipe(b"x", b"b", None),
            recipe(b"a", b"x", None),
            recipe(b"a", b"b", Some(Path::new("wasm-opt"))),
        ];
        for (index, one) in recipes.iter().enumerate() {
            assert!(recipes.iter().skip(index + 1).all(|other| other != one));
        }
    }

    #[test]
    fn a_whole_file_replaces_the_old_one_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        write_whole(&file, b"old").unwrap();
        write_whole(&file, b"new").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }
}
