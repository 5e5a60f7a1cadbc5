//! Where things are: the root of the workspace, its target folder, and cargo for native builds. Does not know
//! what is built.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;

/// The checkout this tool was started in.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Folder of the workspace's `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Where native builds go; all files of this tool are under it.
    pub(crate) target: PathBuf,
}

impl Workspace {
    /// The workspace this tool belongs to, or the one around the current folder.
    pub(crate) fn find() -> Result<Self> {
        let start = match std::env::var_os("CARGO_MANIFEST_DIR") {
            Some(own) => PathBuf::from(own),
            None => std::env::current_dir()?,
        };
        let root = start
            .ancestors()
            .find(|folder| folder.join("xtask/Cargo.toml").is_file())
            .with_context(|| format!("{} is not inside a checkout of rankpin", start.display()))?;
        Ok(Self::at(root))
    }

    fn at(root: &Path) -> Self {
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(folder) => root.join(folder),
            None => root.join("target"),
        };
        Self { root: root.to_owned(), target }
    }

    /// The cargo that started us, at the root, for native builds.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(args).current_dir(&self.root);
        forget_our_package(&mut command);
        command
    }

    /// What `cargo metadata` says of our own packages.
    pub(crate) fn metadata(&self) -> Result<serde_json::Value> {
        let text = process::capture(&mut self.cargo(&["metadata", "--format-version", "1", "--no-deps"]))?;
        serde_json::from_str(&text).context("cargo metadata printed no JSON")
    }
}

/// Takes away what `cargo run` told *us* about our package: another cargo would pass it on.
pub(crate) fn forget_our_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let ours = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
        if ours.iter().any(|prefix| text.starts_with(prefix)) || text == "RUST_RECURSION_COUNT" {
            command.env_remove(&name);
        }
    }
}
