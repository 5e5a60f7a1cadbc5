//! `upgrade`: builds the filter and the service of an earlier commit with that commit's own commands, under `target/upgrade`. What is
//! checked with them and today's is the program `upgrade` of package e2e. Takes minutes to build: no part of `test`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::artifacts::{Artifacts, Profile};
use crate::prerequisite::Missing;
use crate::process;
use crate::workspace::Workspace;

/// The commit that closed A1, the last before the work of A2 began: the first version anybody could have running, and so the oldest
/// that an upgrade may begin at.
const FROM: &str = "d7e9f28b57dc796d1637f02131b0d4dbfea32633";
/// Written last: without it the sources are unpacked anew.
const MARKER: &str = "unpacked";
const USAGE: &str = "usage: cargo xtask upgrade [--from COMMIT] [ARGS]";

/// An earlier version, built.
struct Earlier {
    commit: String,
    source: PathBuf,
    service: PathBuf,
    wasm: PathBuf,
}

/// `upgrade [--from COMMIT] [ARGS]`.
pub(crate) fn command(workspace: &Workspace, args: &[String]) -> Result<()> {
    let (from, rest) = arguments(args)?;
    let earlier = Earlier::ensure(workspace, from)?;
    let artifacts = Artifacts::ensure(workspace, Profile::Debug)?;
    let mut check = Command::new(artifacts.program("upgrade")?);
    artifacts.tell(&mut check);
    check.env("RANKPIN_OLD_COMMIT", &earlier.commit).env("RANKPIN_OLD_ROOT", &earlier.source);
    check.env("RANKPIN_OLD_SERVICE", &earlier.service).env("RANKPIN_OLD_WASM", &earlier.wasm);
    Err(process::become_program(check.args(rest).current_dir(&workspace.root)))
}

fn arguments(args: &[String]) -> Result<(&str, &[String])> {
    match args {
        [flag, commit, rest @ ..] if flag == "--from" => Ok((commit, rest)),
        [flag] if flag == "--from" => Err(Missing::error(USAGE)),
        rest => Ok((FROM, rest)),
    }
}

impl Earlier {
    /// Unpacks and builds what is not there; quick when it is.
    fn ensure(workspace: &Workspace, from: &str) -> Result<Self> {
        let commit = resolve(workspace, from)?;
        let folder = workspace.target.join("upgrade").join(&commit);
        let source = folder.join("source");
        if !folder.join(MARKER).is_file() {
            unpack(workspace, &commit, &source)?;
            fs::write(folder.join(MARKER), &commit)?;
        }
        let own = Workspace { root: source.clone(), target: folder.join("target") };
        process::note(&format!("building rankpin of {commit} (some minutes the first time)"));
        // Its own commands choose its toolchain for wasm, by the same WASM_TOOLCHAIN as ours.
        process::run(&mut cargo(&own, &["build", "--locked", "-p", "state-service", "--bin", "rankpin"]))?;
        process::run(cargo(&own, &["xtask", "build-filter"]).stdout(process::to_stderr()))?;
        let (service, wasm) = (own.target.join("debug/rankpin"), own.target.join("rankpin.wasm"));
        for built in [&service, &wasm] {
            if !built.is_file() {
                bail!("{commit} was built, and there is no {}", built.display());
            }
        }
        Ok(Self { commit, source, service, wasm })
    }
}

/// Its cargo builds into a folder of its own.
fn cargo(own: &Workspace, args: &[&str]) -> Command {
    let mut command = own.cargo(args);
    command.env("CARGO_TARGET_DIR", &own.target);
    command
}

/// The whole hash of a commit that this checkout has.
fn resolve(workspace: &Workspace, from: &str) -> Result<String> {
    let mut ask = git(workspace);
    ask.args(["rev-parse", "--verify", "--quiet", "--end-of-options", &format!("{from}^{{commit}}")]);
    let said = process::output_of(&mut ask).unwrap_or_default();
    match said.trim() {
        "" => Err(Missing::error(format!(
            "this checkout has no commit {from}: in a shallow clone run `git fetch --unshallow`, or name another with --from"
        ))),
        commit => Ok(commit.to_owned()),
    }
}

/// What git keeps of the commit, as files; half of it that an earlier try left goes first.
fn unpack(workspace: &Workspace, commit: &str, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("cannot clear {}", to.display()))?;
    }
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let archive = to.with_extension("tar");
    process::run(git(workspace).args(["archive", "--format=tar", "--output"]).arg(&archive).arg(commit))?;
    process::run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(to))?;
    fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))
}

fn git(workspace: &Workspace) -> Command {
    let mut command = Command::new("git");
    command.current_dir(&workspace.root).stdin(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> (tempfile::TempDir, Workspace) {
        let folder = tempfile::tempdir().unwrap();
        let own = Workspace { root: folder.path().to_owned(), target: folder.path().join("target") };
        fs::write(folder.path().join("a.txt"), "as it was").unwrap();
        for args in [
            &["init", "--quiet"][..],
            &["add", "a.txt"],
            &["-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "--quiet", "-m", "m"],
        ] {
            process::run(git(&own).args(args)).unwrap();
        }
        fs::write(folder.path().join("a.txt"), "as it is").unwrap();
        (folder, own)
    }

    #[test]
    fn a_commit_that_is_not_here_is_told_with_its_remedy() {
        let (_folder, own) = repository();
        let error = resolve(&own, FROM).unwrap_err();
        assert!(error.is::<Missing>() && error.to_string().contains("--unshallow"), "{error}");
        assert!(resolve(&own, "--help").is_err());
        assert_eq!(resolve(&own, "HEAD").unwrap().len(), 40);
    }

    #[test]
    fn the_files_are_those_of_the_commit() {
        let (folder, own) = repository();
        let to = folder.path().join("target/source");
        fs::create_dir_all(&to).unwrap();
        fs::write(to.join("left.txt"), "by an earlier try").unwrap();
        unpack(&own, "HEAD", &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("a.txt")).unwrap(), "as it was");
        assert_eq!(to.read_dir().unwrap().count(), 1);
    }

    #[test]
    fn the_commit_goes_before_what_the_check_is_told() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (given, plain) = (words("--from abc --only forward"), words("--only back"));
        assert_eq!(arguments(&given).unwrap(), ("abc", &given[2..]));
        assert_eq!(arguments(&plain).unwrap(), (FROM, &plain[..]));
        assert!(arguments(&words("--from")).unwrap_err().is::<Missing>());
    }
}
