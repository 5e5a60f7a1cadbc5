//! `build-filter`: compiles the filter for wasm, makes the shipped modules of it, optimises each, checks what is left. What
//! tells the modules apart stands in `module`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::imports;
use crate::module::{MODULES, Module, TRAP, any_ships};
use crate::prerequisite::{Missing, apt_install, can_apt_install};
use crate::process;
use crate::toolchain::{self, TARGET};
use crate::workspace::Workspace;

/// A built module.
#[derive(Debug)]
pub(crate) struct Filter {
    pub(crate) path: PathBuf,
    imports: Vec<String>,
    bytes_shipped: u64,
}

/// `build-filter [--out FOLDER | --trap]`.
pub(crate) fn command(workspace: &Workspace, args: &[String]) -> Result<()> {
    let out = match args {
        [] => None,
        [flag, folder] if flag == "--out" => Some(PathBuf::from(folder)),
        [flag] if flag == "--trap" => {
            println!("{}", ensure_trap(workspace)?.display());
            return Ok(());
        }
        _ => return Err(Missing::error("usage: cargo xtask build-filter [--out FOLDER | --trap]")),
    };
    for (module, mut filter) in MODULES.iter().zip(ensure(workspace)?) {
        if let Some(out) = &out {
            std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
            let path = out.join(module.file);
            write_whole(&path, &std::fs::read(&filter.path)?)?;
            filter.path = path;
        }
        println!("{}: {} KB", filter.path.display(), kilobytes(filter.bytes_shipped));
        println!("  imports, all from Envoy: {}", filter.imports.join(" "));
    }
    Ok(())
}

/// The filter with a trap for tests (`tests/trap`): the same sources, exports as shipped, not optimised any further.
pub(crate) fn ensure_trap(workspace: &Workspace) -> Result<PathBuf> {
    let compiled = std::fs::read(compile(workspace, "filter-trap", "filter_trap.wasm")?)?;
    let path = workspace.target.join(TRAP.file);
    write_whole(&path, &TRAP.cut(&compiled)?)?;
    Ok(path)
}

/// Builds what is not up to date, in the order of [`MODULES`]; quick when nothing changed.
pub(crate) fn ensure(workspace: &Workspace) -> Result<Vec<Filter>> {
    let compiled = std::fs::read(compile(workspace, "filter", "filter.wasm")?)?;
    let optimiser = find_optimiser()?;
    let stale = |module: &&Module| !is_fresh(workspace, module, &compiled, optimiser.as_deref());
    let stale: Vec<_> = MODULES.iter().filter(stale).collect();
    if !stale.is_empty() {
        // Once for all: the modules differ by next to nothing that could be optimised away.
        let optimised = optimise(workspace, &any_ships(&compiled)?, optimiser.as_deref())?;
        for module in stale {
            let shipped = module.cut(&optimised)?;
            write_whole(&workspace.target.join(module.file), &shipped)?;
            let recipe = recipe(module, &compiled, &shipped, optimiser.as_deref());
            write_whole(&recipe_file(workspace, module), recipe.as_bytes())?;
        }
    }
    MODULES.iter().map(|module| built(workspace, module)).collect()
}

/// Whether the module is there, as these ingredients make it.
fn is_fresh(workspace: &Workspace, module: &Module, compiled: &[u8], optimiser: Option<&Path>) -> bool {
    let Ok(shipped) = std::fs::read(workspace.target.join(module.file)) else { return false };
    let known = std::fs::read_to_string(recipe_file(workspace, module));
    known.is_ok_and(|known| known == recipe(module, compiled, &shipped, optimiser))
}

fn recipe_file(workspace: &Workspace, module: &Module) -> PathBuf {
    toolchain::build_folder(workspace).join(format!("{}.recipe", module.file))
}

fn built(workspace: &Workspace, module: &Module) -> Result<Filter> {
    let path = workspace.target.join(module.file);
    let shipped = std::fs::read(&path)?;
    let imports = imports::check_filter(&shipped).with_context(|| module.file)?;
    Ok(Filter { path, imports, bytes_shipped: shipped.len() as u64 })
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

/// What nobody reaches goes, the rest becomes smaller and faster.
fn optimise(workspace: &Workspace, module: &[u8], optimiser: Option<&Path>) -> Result<Vec<u8>> {
    let Some(optimiser) = optimiser else { return Ok(module.to_vec()) };
    let folder = toolchain::build_folder(workspace);
    let input = folder.join(format!("strip-{}.wasm", std::process::id()));
    let output = folder.join(format!("opt-{}.wasm", std::process::id()));
    std::fs::write(&input, module)?;
    let mut command = Command::new(optimiser);
    command.args(["--all-features", "-O4", "--converge", "--strip-debug", "--strip-producers"]);
    let result = process::run(command.arg(&input).arg("-o").arg(&output));
    let shipped = result.and_then(|()| Ok(std::fs::read(&output)?));
    // Not there after a failure: nothing to say about it.
    let _ = (std::fs::remove_file(&input), std::fs::remove_file(&output));
    shipped
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

/// Everything a shipped module depends on; the same text means there is nothing to do.
fn recipe(module: &Module, compiled: &[u8], shipped: &[u8], optimiser: Option<&Path>) -> String {
    format!("{}\n{}\n{optimiser:?}\n{}\n", hex_sha256(compiled), hex_sha256(shipped), module.recipe())
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
    fn the_recipe_changes_with_each_ingredient() {
        let recipes = [
            recipe(&MODULES[0], b"a", b"b", None),
            recipe(&MODULES[0], b"x", b"b", None),
            recipe(&MODULES[0], b"a", b"x", None),
            recipe(&MODULES[1], b"a", b"b", None),
            recipe(&MODULES[0], b"a", b"b", Some(Path::new("wasm-opt"))),
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
