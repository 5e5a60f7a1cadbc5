//! `imports`: what our wasm modules may ask of their host. The filter: Envoy's hostcalls and nothing else. The
//! tests of `routing`: nothing from `env`, which shows that the core is pure.

use anyhow::{Result, bail};

use crate::prerequisite::Missing;
use crate::wasm::{self, Import};
use crate::workspace::Workspace;
use crate::{build_filter, node_test};

/// `imports`.
pub(crate) fn command(workspace: &Workspace, args: &[String]) -> Result<()> {
    if !args.is_empty() {
        return Err(Missing::error("usage: cargo xtask imports"));
    }
    for filter in build_filter::ensure(workspace)? {
        println!("{}: only Envoy's hostcalls", filter.path.display());
    }
    let tests = node_test::compile(workspace)?;
    println!("tests of routing, {} wasm modules: nothing from `env`", tests.len());
    Ok(())
}

/// Names of the filter's imports, all of them `env.proxy_*`.
pub(crate) fn check_filter(module: &[u8]) -> Result<Vec<String>> {
    let imports = wasm::imports(module)?;
    let foreign: Vec<_> = imports.iter().filter(|import| !is_hostcall(import)).map(full_name).collect();
    if !foreign.is_empty() {
        bail!("the filter imports what no Envoy offers: {}", foreign.join(", "));
    }
    Ok(imports.into_iter().map(|import| import.name).collect())
}

/// Fails when a module of `routing`'s tests asks anything of `env`.
pub(crate) fn check_tests(module: &[u8]) -> Result<()> {
    let foreign: Vec<_> =
        wasm::imports(module)?.iter().filter(|import| import.module == "env").map(full_name).collect();
    if !foreign.is_empty() {
        bail!("the tests of `routing` reach outside the pure core: {}", foreign.join(", "));
    }
    Ok(())
}

fn is_hostcall(import: &Import) -> bool {
    import.module == "env" && import.name.starts_with("proxy_")
}

fn full_name(import: &Import) -> String {
    format!("{}.{}", import.module, import.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module that imports one function.
    fn module(from: &str, name: &str) -> Vec<u8> {
        let mut import = vec![1, from.len() as u8];
        import.extend_from_slice(from.as_bytes());
        import.push(name.len() as u8);
        import.extend_from_slice(name.as_bytes());
        import.extend_from_slice(&[0, 0]);
        let mut module = b"\0asm\x01\0\0\0".to_vec();
        module.extend_from_slice(&[2, import.len() as u8]);
        module.extend_from_slice(&import);
        module
    }

    #[test]
    fn the_filter_may_import_hostcalls_only() {
        assert_eq!(check_filter(&module("env", "proxy_log")).unwrap(), ["proxy_log"]);
        for (from, name) in [("env", "abort"), ("wasi_snapshot_preview1", "proxy_log")] {
            let error = check_filter(&module(from, name)).unwrap_err().to_string();
            assert!(error.contains(&format!("{from}.{name}")), "{error}");
        }
    }

    #[test]
    fn tests_of_the_core_may_not_import_from_env() {
        check_tests(&module("__wbindgen_placeholder__", "log")).unwrap();
        assert!(check_tests(&module("env", "proxy_log")).is_err());
    }
}
