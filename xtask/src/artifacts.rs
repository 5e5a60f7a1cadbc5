//! What a run on a real Envoy needs, built or fetched, and the variables that tell it where things are. Does not
//! know who reads them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace::Workspace;
use crate::{build_filter, envoy, process};

/// The packages whose programs a run starts.
const PACKAGES: &[&str] = &["-p", "state-service", "-p", "fake-engine", "-p", "e2e"];

/// How the native programs are compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Debug,
    Release,
}

/// Everything a run on a real Envoy needs.
#[derive(Debug)]
pub(crate) struct Artifacts {
    envoy: PathBuf,
    /// The folder of the filter's modules.
    modules: PathBuf,
    programs: PathBuf,
    root: PathBuf,
}

impl Artifacts {
    /// Builds and fetches what is missing.
    pub(crate) fn ensure(workspace: &Workspace, profile: Profile) -> Result<Self> {
        let programs = build_programs(workspace, profile)?;
        build_filter::ensure(workspace)?;
        let (envoy, modules) = (envoy::ensure(workspace)?, workspace.target.clone());
        Ok(Self { envoy, modules, programs, root: workspace.root.clone() })
    }

    /// Tells `command` where things are.
    pub(crate) fn tell(&self, command: &mut Command) {
        command.env("RANKPIN_ENVOY", &self.envoy).env("RANKPIN_WASM_DIR", &self.modules);
        command.env("RANKPIN_BIN_DIR", &self.programs).env("RANKPIN_ROOT", &self.root);
    }

    /// One of the built programs.
    pub(crate) fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.programs.join(name);
        let missing = || format!("there is no program `{name}`: does package e2e still declare it?");
        process::is_executable(&path).then_some(path).with_context(missing)
    }
}

/// Compiles the service, the fake engine and the tools around them; the folder they are in.
pub(crate) fn build_programs(workspace: &Workspace, profile: Profile) -> Result<PathBuf> {
    let (folder, flag) = match profile {
        Profile::Debug => ("debug", None),
        Profile::Release => ("release", Some("--release")),
    };
    let folder = workspace.target.join(folder);
    if !folder.join("rankpin").is_file() {
        process::note("compiling the service and the fake engine (some minutes the first time)");
    }
    let mut build = workspace.cargo(&["build", "--bins"]);
    process::run(build.args(PACKAGES).args(flag))?;
    Ok(folder)
}
