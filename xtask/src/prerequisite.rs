//! A prerequisite that is not there: one sentence with its remedy, and exit code 2. Also the only place that
//! installs Debian packages. It does not know what they are for.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use anyhow::Result;

use crate::process;

/// What the machine or the caller lacks, as one sentence that says what to do.
#[derive(Debug)]
pub(crate) struct Missing(String);

impl Missing {
    /// An error that ends the program with code 2.
    pub(crate) fn error(sentence: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self(sentence.into()))
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// Whether [`apt_install`] can work: Debian's installer is here and we are root.
pub(crate) fn can_apt_install() -> bool {
    is_root() && process::on_path("apt-get").is_some()
}

/// Installs Debian packages, after refreshing the package lists.
pub(crate) fn apt_install(packages: &[&str]) -> Result<()> {
    process::note(&format!("installing Debian packages: {} (a minute or so)", packages.join(" ")));
    process::run(&mut apt(&["update", "-qq"]))?;
    let mut install = apt(&["install", "-y", "-qq", "--no-install-recommends"]);
    process::run(install.args(packages))
}

/// Those of `packages` that dpkg does not know as installed; all of them where there is no dpkg.
pub(crate) fn debian_lacks<'a>(packages: &[&'a str]) -> Vec<&'a str> {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${Package} ${db:Status-Status}\n"]).args(packages);
    // dpkg-query fails when a single package is unknown, and still prints the others.
    let listing = process::output_of(&mut query).unwrap_or_default();
    let installed = |name: &str| listing.lines().any(|line| line == format!("{name} installed"));
    packages.iter().copied().filter(|name| !installed(name)).collect()
}

fn apt(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    // apt's chatter is progress, not our result: a caller may read our standard output.
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdout(process::to_stderr());
    command
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_nobody_has_is_lacking() {
        assert_eq!(debian_lacks(&["no-such-package-of-anyone"]), ["no-such-package-of-anyone"]);
    }

    #[test]
    fn a_missing_prerequisite_is_its_sentence() {
        let error = Missing::error("install x");
        assert!(error.is::<Missing>() && error.to_string() == "install x");
        assert!(error.context("building y").is::<Missing>());
    }
}
