//! The console blocks of the README, and then of docs/KV.md, run in order as a newcomer would, in one shell in the repository's root.
//!
//! They use the default ports, so the shell gets a network namespace of its own; where that is not allowed, the ports must be
//! free. The block that runs the tests is left out (this is that run). What a block prints is checked where the README promises it.

use e2e::artifacts;
use e2e::child::Child;
use e2e::scratch::Scratch;
use e2e::wait::wait_within;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Brings the loopback interface of a fresh namespace up; `ip` is not on every machine, Python 3 is.
const LOOPBACK_UP: &str = "import fcntl,socket,struct\n\
    s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
    fcntl.ioctl(s,0x8914,struct.pack('16sH14s',b'lo',0x41,b''))\n";

/// Commands of every ```console block, in order.
fn commands(readme: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in readme.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if inside && let Some(command) = line.strip_prefix("$ ") {
            found.push(command.to_owned());
        }
    }
    found
}

/// One script of all commands: each must succeed, each says what it runs, background ones end with the shell.
fn script(commands: &[String]) -> String {
    let mut script = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n".to_owned();
    for command in commands {
        let said = command.replace('\'', "'\\''");
        script.push_str(&format!("echo '$ {said}'\n{command}\n"));
    }
    script
}

fn namespaced() -> bool {
    Command::new("unshare")
        .args(["-n", "true"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Longest the blocks may take, the demo's builds included: a limit for a hang, not a measure.
const LONGEST: Duration = Duration::from_secs(1200);

#[tokio::test]
async fn every_console_block_works_as_printed() {
    let all =
        run("README.md", &["\"w0\"", "chat.completion", "rankpin.requests.routed_held: 1", "\"state\":"])
            .await;
    assert!(all >= 10, "the README has its console blocks: {all}");
    // With what the README built, and on the same ports.
    let kv = [
        "x-engine-rank",
        "\"cached_tokens\":512",
        "rankpin_prompts_total{pool=\"default\",source=\"local\"} 2",
    ];
    assert!(run("docs/KV.md", &kv).await >= 8, "KV.md has its console blocks");
}

/// Runs a page's blocks, and looks for what it promises; how many commands there are.
async fn run(page: &str, promises: &[&str]) -> usize {
    let text = std::fs::read_to_string(artifacts::root().join(page)).unwrap();
    let all = commands(&text);
    let run: Vec<String> = all.iter().filter(|command| *command != "cargo xtask test").cloned().collect();
    let scratch = Scratch::new().unwrap();
    let run: Vec<String> = run.iter().map(|command| patient(command, scratch.path())).collect();
    let mut shell = Child::spawn("readme", shell(&script(&run)), &scratch.path().join("readme.log")).unwrap();
    let status = wait_within(LONGEST, "the page's blocks to end", async || shell.exited()).await;
    let text = shell.output();
    assert!(status.is_ok_and(|status| status.success()), "{page}: {text}");
    for promised in promises {
        assert!(text.contains(promised), "{page}: no {promised} in:\n{text}");
    }
    all.len()
}

/// What a page prints for people whose machine does nothing else, as it runs where much else does: an Envoy whose filter waits longer for the
/// service, and a longer pause between two turns.
fn patient(command: &str, folder: &Path) -> String {
    let mut command = command.replace("; sleep 1; done", "; sleep 5; done");
    for name in ["dynamic.yaml", "kv.yaml"] {
        let printed = format!("-c envoy/{name} --log-level");
        if command.contains(&printed) {
            let shipped = std::fs::read_to_string(artifacts::root().join("envoy").join(name)).unwrap();
            let mut waits = shipped.replace(r#""route_deadline_ms": 30"#, r#""route_deadline_ms": 5000"#);
            assert_ne!(waits, shipped, "{name}: another deadline is shipped");
            waits =
                waits.replace(r#""route_prompt_deadline_ms": 250"#, r#""route_prompt_deadline_ms": 5000"#);
            let own = folder.join(name);
            std::fs::write(&own, waits).unwrap();
            command = command.replace(&printed, &format!("-c {} --log-level", own.display()));
        }
    }
    command
}

/// A shell for the script, in a network namespace of its own where that is allowed.
fn shell(script: &str) -> Command {
    let mut command = if namespaced() {
        let mut command = Command::new("unshare");
        command.args([
            "-n",
            "bash",
            "-c",
            &format!("python3 -c \"{LOOPBACK_UP}\" && exec bash -c \"$RANKPIN_README\""),
        ]);
        command
    } else {
        let mut command = Command::new("bash");
        command.args(["-c", script]);
        command
    };
    command
        .current_dir(artifacts::root())
        .env("RANKPIN_README", script)
        // Everything was fetched by the steps before; the namespace has no way out.
        .env("CARGO_NET_OFFLINE", "true")
        .env_remove("RANKPIN_BIN_DIR");
    command
}
