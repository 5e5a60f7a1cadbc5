//! A Rust toolchain with a standard library for wasm32-unknown-unknown: which there are, which one to take, and
//! how to call its cargo. Does not know what is compiled with it.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::prerequisite::{Missing, apt_install, can_apt_install, debian_lacks};
use crate::process;
use crate::workspace::{Workspace, forget_our_package};

/// The target of the filter and of the tests under node.
pub(crate) const TARGET: &str = "wasm32-unknown-unknown";

/// What Envoy's engine and node both run; worth 5 µs on a 100 KB body.
const RUSTFLAGS: &str = "-C target-feature=+simd128,+bulk-memory";

/// Debian's own toolchain; it builds its standard library from `rust-web-src`.
const DEBIAN_PACKAGES: &[&str] = &["rustc-web", "cargo-web", "rust-web-src", "rust-web-llvm", "lld-22"];

/// A toolchain that can compile for [`TARGET`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Toolchain {
    /// The default one, which has the target's standard library.
    Native,
    /// Debian's packages; the standard library is built beside ours.
    Debian,
}

/// What `WASM_TOOLCHAIN` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Auto,
    Native,
    Debian,
    Rustup,
}

/// Finds a toolchain, installing one when that is possible and allowed by `WASM_TOOLCHAIN`.
pub(crate) fn find() -> Result<Toolchain> {
    let wish = std::env::var("WASM_TOOLCHAIN").unwrap_or_default();
    match parse_choice(&wish)? {
        Choice::Auto => find_any(),
        Choice::Native if native_has_std() => Ok(Toolchain::Native),
        Choice::Native => Err(Missing::error(format!(
            "the default toolchain has no {TARGET} standard library: run `rustup target add {TARGET}`"
        ))),
        Choice::Debian => find_debian(),
        Choice::Rustup => find_rustup(),
    }
}

fn parse_choice(wish: &str) -> Result<Choice> {
    match wish {
        "" | "auto" => Ok(Choice::Auto),
        "native" => Ok(Choice::Native),
        "debian" => Ok(Choice::Debian),
        "rustup" => Ok(Choice::Rustup),
        other => {
            Err(Missing::error(format!("WASM_TOOLCHAIN={other} is none of auto, native, debian, rustup")))
        }
    }
}

/// What is there already, then what rustup adds, then what apt adds.
fn find_any() -> Result<Toolchain> {
    if native_has_std() {
        return Ok(Toolchain::Native);
    }
    if debian_lacks(DEBIAN_PACKAGES).is_empty() {
        return Ok(Toolchain::Debian);
    }
    if process::on_path("rustup").is_some() && rustup_adds_target() {
        return Ok(Toolchain::Native);
    }
    find_debian().map_err(|error| match error.is::<Missing>() {
        true => Missing::error(format!(
            "no standard library for {TARGET}: run `rustup target add {TARGET}` or, on Debian, `{}`",
            debian_remedy()
        )),
        false => error,
    })
}

fn find_rustup() -> Result<Toolchain> {
    if native_has_std() || rustup_adds_target() {
        return Ok(Toolchain::Native);
    }
    Err(Missing::error(format!(
        "`rustup target add {TARGET}` did not work: install rustup, or check its network"
    )))
}

fn find_debian() -> Result<Toolchain> {
    let lacking = debian_lacks(DEBIAN_PACKAGES);
    if lacking.is_empty() {
        return Ok(Toolchain::Debian);
    }
    if !can_apt_install() {
        return Err(Missing::error(format!("Debian's toolchain is not complete: run `{}`", debian_remedy())));
    }
    apt_install(&lacking).map(|()| Toolchain::Debian)
}

fn debian_remedy() -> String {
    format!("apt-get update && apt-get install -y --no-install-recommends {}", DEBIAN_PACKAGES.join(" "))
}

fn rustup_adds_target() -> bool {
    process::note(&format!("adding {TARGET} with rustup"));
    let mut command = Command::new("rustup");
    command.args(["target", "add", TARGET]).stdout(process::to_stderr());
    process::run(&mut command).is_ok() && native_has_std()
}

/// rustc prints the folder, with success, whether or not anything is in it: look for the file.
fn native_has_std() -> bool {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--print", "target-libdir", "--target", TARGET]);
    process::output_of(&mut rustc).is_some_and(|folder| has_core(Path::new(folder.trim())))
}

fn has_core(folder: &Path) -> bool {
    let Ok(entries) = folder.read_dir() else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("libcore-") && name.ends_with(".rlib")
    })
}

impl Toolchain {
    /// Its cargo, building for [`TARGET`] into a folder of its own, so that a native build need not wait.
    /// `args` begin with the subcommand.
    pub(crate) fn cargo(self, workspace: &Workspace, args: &[&str]) -> Command {
        let mut command = match self {
            Self::Native => workspace.cargo(args),
            Self::Debian => debian_cargo(workspace, args),
        };
        command.args(["--target", TARGET]);
        command.env("CARGO_TARGET_DIR", build_folder(workspace)).env("RUSTFLAGS", RUSTFLAGS);
        if self == Self::Debian {
            command.arg("-Zbuild-std=std,panic_abort");
        }
        command
    }
}

/// Where wasm builds go.
pub(crate) fn build_folder(workspace: &Workspace) -> std::path::PathBuf {
    workspace.target.join("wasm")
}

fn debian_cargo(workspace: &Workspace, args: &[&str]) -> Command {
    let mut command = Command::new("/usr/bin/cargo");
    command.args(args).current_dir(&workspace.root);
    forget_our_package(&mut command);
    // rustdoc must be the same compiler's, or doctests read foreign libraries; -Zbuild-std needs the bootstrap
    // switch, for this command only; the library path is that of the cargo which started us.
    command.env("RUSTC", "/usr/bin/rustc").env("RUSTDOC", "/usr/bin/rustdoc").env("RUSTC_BOOTSTRAP", "1");
    for name in ["LD_LIBRARY_PATH", "RUSTUP_TOOLCHAIN", "RUSTUP_HOME", "RUSTC_WRAPPER", "CARGO"] {
        command.env_remove(name);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_one_of_four_words() {
        assert_eq!(parse_choice("").unwrap(), Choice::Auto);
        assert_eq!(parse_choice("debian").unwrap(), Choice::Debian);
        let error = parse_choice("nix").unwrap_err();
        assert!(error.is::<Missing>() && error.to_string().contains("nix"));
    }

    #[test]
    fn an_empty_library_folder_is_no_standard_library() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!has_core(folder.path()));
        std::fs::write(folder.path().join("libcore-0123.rlib"), b"").unwrap();
        assert!(has_core(folder.path()));
    }
}
