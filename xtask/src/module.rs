//! The modules made of one compile of the filter: which exports each ships, and the mark that tells it so. Does not know what
//! the filter does in them.

use anyhow::{Context, Result, bail};

use crate::wasm;

/// One artifact.
#[derive(Debug)]
pub(crate) struct Module {
    /// File name under `target/`.
    pub(crate) file: &'static str,
    /// Last byte of the mark, which the filter reads (`filter/src/host/abi.rs`).
    mark: u8,
    /// Exports on top of [`KEPT_EXPORTS`].
    more: &'static [Export],
}

/// Name of an export as compiled, and as shipped.
type Export = (&'static str, &'static str);

/// The static that holds the mark, and what stands there as compiled.
const MARK: &str = "RANKPIN_MODULE";
const MARK_COMPILED: &[u8] = b"rankpin-module=?";

const REQUEST_BODY: Export = ("rankpin_on_request_body", "proxy_on_request_body");
/// Some bodies end with them.
const REQUEST_TRAILERS: Export = ("proxy_on_request_trailers", "proxy_on_request_trailers");
const RESPONSE_BODY: Export = ("proxy_on_response_body", "proxy_on_response_body");

/// The shipped modules. A listener whose keys stand in headers pays for no body callback, and one that reads request bodies
/// pays for no chunk of a streamed answer.
pub(crate) const MODULES: &[Module] = &[
    Module { file: "rankpin.wasm", mark: b'0', more: &[] },
    Module { file: "rankpin-body.wasm", mark: b'1', more: &[REQUEST_BODY, REQUEST_TRAILERS] },
    Module { file: "rankpin-full.wasm", mark: b'2', more: &[REQUEST_BODY, REQUEST_TRAILERS, RESPONSE_BODY] },
];

/// The first module, from the sources that can trap (`tests/trap`).
pub(crate) const TRAP: Module = Module { file: "rankpin-trap.wasm", mark: b'0', more: &[] };

/// Exports every module keeps. The SDK exports every callback there is; Envoy crosses into the VM for each one it finds, so a
/// callback the filter does not implement costs a call per request, and `proxy_on_response_body` one per streamed chunk. What
/// is not named here or by the module is dropped: an answer's trailers, TCP, gRPC, queues, foreign functions.
const KEPT_EXPORTS: &[Export] = &[
    ("memory", "memory"),
    ("_initialize", "_initialize"),
    ("_start", "_start"),
    ("proxy_abi_version_0_2_1", "proxy_abi_version_0_2_1"),
    ("proxy_on_memory_allocate", "proxy_on_memory_allocate"),
    ("malloc", "malloc"),
    ("proxy_on_context_create", "proxy_on_context_create"),
    ("proxy_on_vm_start", "proxy_on_vm_start"),
    ("proxy_on_configure", "proxy_on_configure"),
    ("proxy_on_tick", "proxy_on_tick"),
    // The filter's own, which can say more than the SDK's of that name.
    ("rankpin_on_request_headers", "proxy_on_request_headers"),
    ("proxy_on_response_headers", "proxy_on_response_headers"),
    ("proxy_on_http_call_response", "proxy_on_http_call_response"),
    ("proxy_on_delete", "proxy_on_delete"),
];

/// Without one of each of these no Envoy could use a module.
const NEEDED_EXPORTS: &[&[&str]] = &[
    &["memory"],
    &["proxy_abi_version_0_2_1"],
    &["malloc", "proxy_on_memory_allocate"],
    &["proxy_on_context_create"],
    &["proxy_on_vm_start"],
    &["proxy_on_configure"],
    &["rankpin_on_request_headers"],
];

/// What is compiled with nothing but what some module ships, still under the names it has there: what no module can reach may go
/// before they are cut, once for all.
///
/// # Errors
/// The compiled module is no wasm.
pub(crate) fn any_ships(compiled: &[u8]) -> Result<Vec<u8>> {
    let known = || MODULES.iter().flat_map(Module::exports).map(|(compiled, _)| *compiled).chain([MARK]);
    wasm::select_exports(compiled, |name| known().find(|known| *known == name))
}

impl Module {
    /// What is compiled, made this module: marked, and with its exports alone.
    ///
    /// # Errors
    /// The compiled module lacks the mark or an export.
    pub(crate) fn cut(&self, compiled: &[u8]) -> Result<Vec<u8>> {
        self.check_exports(&wasm::exports(compiled)?)?;
        let mut mark = MARK_COMPILED.to_vec();
        if let Some(last) = mark.last_mut() {
            *last = self.mark;
        }
        let marked = wasm::patch(compiled, MARK, MARK_COMPILED, &mark)
            .with_context(|| format!("{} cannot be told which module it is", self.file))?;
        wasm::select_exports(&marked, |compiled| self.ships(compiled))
    }

    /// The name under which this module ships an export, if it does.
    fn ships(&self, compiled: &str) -> Option<&'static str> {
        self.exports().find(|(own, _)| *own == compiled).map(|(_, shipped)| *shipped)
    }

    fn exports(&self) -> impl Iterator<Item = &'static Export> {
        KEPT_EXPORTS.iter().chain(self.more)
    }

    fn check_exports(&self, exports: &[String]) -> Result<()> {
        let there = |name: &&str| exports.iter().any(|export| export == name);
        let own = self.more.iter().map(|(compiled, _)| std::slice::from_ref(compiled));
        let lacking: Vec<_> = NEEDED_EXPORTS
            .iter()
            .copied()
            .chain(own)
            .filter(|names| !names.iter().any(there))
            .map(|names| names.join(" or "))
            .collect();
        if !lacking.is_empty() {
            bail!("no Envoy would load {}: it does not export {}", self.file, lacking.join(", "));
        }
        Ok(())
    }

    /// Everything about this table that a built file depends on.
    pub(crate) fn recipe(&self) -> String {
        let exports: Vec<_> = self.exports().map(|(from, to)| format!("{from}>{to}")).collect();
        format!("{} {} {}", self.file, char::from(self.mark), exports.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped(module: &Module) -> Vec<&str> {
        module.exports().map(|(_, shipped)| *shipped).collect()
    }

    #[test]
    fn what_is_needed_is_kept() {
        let kept = |name: &&str| KEPT_EXPORTS.iter().any(|(compiled, _)| compiled == name);
        assert!(NEEDED_EXPORTS.iter().flat_map(|names| names.iter()).all(kept));
    }

    #[test]
    fn each_module_has_the_bodies_its_name_promises() {
        let bodies = ["proxy_on_request_body", "proxy_on_response_body"];
        let has = |module| bodies.map(|body| shipped(module).contains(&body));
        assert_eq!(
            MODULES.iter().map(has).collect::<Vec<_>>(),
            [[false, false], [true, false], [true, true]]
        );
        for module in MODULES {
            let names = shipped(module);
            assert!(!names.contains(&"proxy_on_upstream_data"), "{}", module.file);
            assert!(names.contains(&"proxy_on_request_headers"), "{}", module.file);
            assert!(names.iter().all(|name| names.iter().filter(|other| *other == name).count() == 1));
        }
    }

    #[test]
    fn marks_and_recipes_are_apart() {
        for (index, one) in MODULES.iter().enumerate() {
            assert!(MODULES.iter().skip(index + 1).all(|two| one.mark != two.mark));
            assert!(MODULES.iter().skip(index + 1).all(|two| one.recipe() != two.recipe()));
        }
    }

    #[test]
    fn a_module_no_envoy_would_load_is_refused() {
        let module = &MODULES[1];
        let needed = NEEDED_EXPORTS.iter().flat_map(|names| names.first());
        let mut exports: Vec<_> =
            needed.chain(&["proxy_on_request_trailers"]).map(|name| (*name).to_owned()).collect();
        let error = module.check_exports(&exports).unwrap_err().to_string();
        assert!(error.contains("rankpin_on_request_body") && error.contains("rankpin-body.wasm"), "{error}");
        exports.push("rankpin_on_request_body".to_owned());
        module.check_exports(&exports).unwrap();
        assert!(module.cut(b"\0asm\x01\0\0\0").is_err());
    }
}
