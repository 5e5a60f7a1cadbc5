//! `redis`: a usable Redis or Valkey server, one on PATH or Debian's package. Owns the oldest version we support. Does not start it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::prerequisite::{Missing, apt_install, can_apt_install};
use crate::process;
use crate::workspace::Workspace;

/// The oldest server we support: the log is trimmed by age (`XTRIM MINID`).
const OLDEST: (u32, u32) = (6, 2);
/// Servers we look for, in this order.
const PROGRAMS: &[&str] = &["redis-server", "valkey-server"];
/// Debian's package; its name is that of its program.
const PACKAGE: &str = "redis-server";

/// `redis`.
pub(crate) fn command(_: &Workspace, args: &[String]) -> Result<()> {
    if !args.is_empty() {
        return Err(Missing::error("usage: cargo xtask redis"));
    }
    println!("{}", ensure()?.display());
    Ok(())
}

/// Path of a usable server, installed when there is none.
pub(crate) fn ensure() -> Result<PathBuf> {
    if let Some(found) = usable() {
        return Ok(found);
    }
    let (major, minor) = OLDEST;
    if !can_apt_install() {
        return Err(Missing::error(format!(
            "the tests of the store start a real server, and there is none: put a redis-server or valkey-server of \
             {major}.{minor} or later on PATH (Debian: `apt-get install {PACKAGE}`)"
        )));
    }
    apt_install(&[PACKAGE])?;
    match usable() {
        Some(found) => Ok(found),
        None => bail!("Debian's {PACKAGE} is older than {major}.{minor}: put a later one on PATH"),
    }
}

fn usable() -> Option<PathBuf> {
    let found = PROGRAMS.iter().filter_map(|name| process::on_path(name));
    found.into_iter().find(|program| version_of(program).is_some_and(|version| version >= OLDEST))
}

fn version_of(program: &Path) -> Option<(u32, u32)> {
    parse_version(&process::output_of(Command::new(program).arg("--version"))?)
}

/// Major and minor of `Redis server v=7.0.15 sha=…`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(" v=").nth(1)?.split(['.', ' ']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_what_the_server_prints() {
        assert_eq!(parse_version("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0"), Some((7, 0)));
        assert_eq!(parse_version("Valkey server v=8.1.0 sha=1"), Some((8, 1)));
        assert_eq!(parse_version("redis"), None);
        assert!((6, 0) < OLDEST && (7, 0) >= OLDEST);
    }
}
