//! Starting other programs: they die with us, their failure names the command line, progress goes to standard
//! error. Knows nothing of what it starts. Holds this crate's only `unsafe`: the call that sets PR_SET_PDEATHSIG.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// One line of progress, on standard error.
pub(crate) fn note(line: &str) {
    eprintln!("xtask: {line}");
}

/// Runs to the end; an exit code other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    die_with_parent(command);
    let line = describe(command);
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// Standard output of a program that succeeds; its standard error is shown with the failure only.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    die_with_parent(command);
    let line = describe(command);
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` failed ({}): {}", output.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Standard output whatever the exit code is; `None` when the program cannot be started.
pub(crate) fn output_of(command: &mut Command) -> Option<String> {
    die_with_parent(command);
    let output = command.stderr(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs to the end, showing each line of standard output and giving it to `see`.
pub(crate) fn run_seeing(command: &mut Command, mut see: impl FnMut(&str)) -> Result<()> {
    die_with_parent(command);
    let line = describe(command);
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start `{line}`"))?;
    if let Some(stdout) = child.stdout.take() {
        for text in BufReader::new(stdout).lines() {
            let text = text.with_context(|| format!("reading what `{line}` prints"))?;
            println!("{text}");
            see(&text);
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// Becomes `command`: its exit code and signals are the caller's. Returns only on failure.
pub(crate) fn become_program(command: &mut Command) -> anyhow::Error {
    let line = describe(command);
    anyhow::Error::new(command.exec()).context(format!("cannot start `{line}`"))
}

/// Where `program` is on PATH.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_executable(file))
}

/// Our standard error as a child's standard output.
pub(crate) fn to_stderr() -> Stdio {
    std::io::stderr().as_fd().try_clone_to_owned().map_or_else(|_| Stdio::null(), Stdio::from)
}

/// Whether `file` is a program.
pub(crate) fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn describe(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}

/// PR_SET_PDEATHSIG: when this process is killed its children end too, so nothing is left running.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command) {
    let set = || {
        // SAFETY: prctl with PR_SET_PDEATHSIG reads only its integer arguments and is async-signal-safe.
        let code = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
        if code == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes one system call between fork and exec and allocates nothing.
    unsafe { command.pre_exec(set) };
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_command: &mut Command) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_line() {
        let error = run(Command::new("sh").args(["-c", "exit 3"])).unwrap_err().to_string();
        assert!(error.contains("sh -c exit 3") && error.contains('3'), "{error}");
    }

    #[test]
    fn capture_shows_standard_error_of_a_failure() {
        let error = capture(Command::new("sh").args(["-c", "echo why >&2; exit 1"])).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
    }

    #[test]
    fn seen_lines_are_the_ones_printed() {
        let mut seen = Vec::new();
        run_seeing(Command::new("sh").args(["-c", "echo a; echo b"]), |line| seen.push(line.to_owned()))
            .unwrap();
        assert_eq!(seen, ["a", "b"]);
    }
}
