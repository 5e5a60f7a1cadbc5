//! Root contexts: configure, tick, and the calls that belong to no request (reports and the watch).

use crate::downstream::Downstream;
use crate::host::abi;
use crate::roles::Plugin;
use crate::upstream::Upstream;
use crate::watch::Watch;
use crate::{host, seats, store, vm};
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;
use routing::config::{FilterConfig, Watcher};
use routing::contract::REPORT_PATH;
use routing::header::root;
use routing::time::Millis;
use std::rc::Rc;

/// A report that is not answered by then is sent again.
const REPORT_TIMEOUT: Millis = Millis(1500);

enum Role {
    /// Not configured yet.
    None,
    Downstream(Rc<Plugin>, Option<Watch>),
    Upstream,
    Watch(Rc<Plugin>, Watch),
}

pub(crate) struct Root {
    id: u32,
    role: Role,
}

impl Root {
    pub(crate) fn new(id: u32) -> Self {
        Self { id, role: Role::None }
    }

    fn configure(&mut self, text: &[u8]) -> Result<(), String> {
        let root_id = host::text_property("plugin_root_id").unwrap_or_default();
        vm::start().map_err(str::to_owned)?;
        if root_id == root::UPSTREAM {
            self.role = Role::Upstream;
            return Ok(());
        }
        let mut config = FilterConfig::parse(text)
            .and_then(|config| config.check(abi::module()).map(|()| config))
            .map_err(|errors| format!("the plugin configuration is refused:\n{errors}"))?;
        (config.page_count, config.page_bytes) = store::open_pages(config.page_count, config.page_bytes);
        host::tick_every(u32::try_from(config.tick.0).unwrap_or(100));
        let elected = config.watcher == Watcher::Elected;
        let plugin = Rc::new(Plugin { config, root: self.id });
        self.role = match root_id.as_str() {
            root::DOWNSTREAM => Role::Downstream(Rc::clone(&plugin), elected.then(Watch::elected)),
            root::WATCH => Role::Watch(plugin, Watch::singleton()),
            other => {
                return Err(format!(
                    "root_id is {other:?}; allowed: {:?}, {:?}, {:?}",
                    root::DOWNSTREAM,
                    root::UPSTREAM,
                    root::WATCH
                ));
            }
        };
        Ok(())
    }

    fn report(plugin: &Plugin) {
        let now = host::now();
        let report = vm::with(|shared| {
            shared.ticked();
            shared.refresh();
            shared.check_pool(&plugin.config.pool_by);
            shared.vm.next_report(now)
        });
        let Some(report) = report.flatten() else { return };
        let body = serde_json::to_vec(&report).unwrap_or_default();
        let call = plugin.call("POST", REPORT_PATH, Some(&body), REPORT_TIMEOUT);
        vm::with(|shared| {
            shared.report_call = call;
            if call.is_none() {
                shared.vm.reports.lost();
            }
        });
    }

    fn reported(token: u32) -> bool {
        vm::with(|shared| {
            if shared.report_call != Some(token) {
                return false;
            }
            shared.report_call = None;
            match host::call_status() {
                Some(200..=299) => shared.vm.reports.acknowledged(),
                _ => shared.vm.reports.lost(),
            }
            true
        })
        .unwrap_or(false)
    }
}

impl Context for Root {
    fn on_http_call_response(&mut self, token: u32, headers: usize, body: usize, _trailers: usize) {
        match &mut self.role {
            Role::Downstream(..) if Self::reported(token) => {}
            Role::Downstream(plugin, Some(watch)) | Role::Watch(plugin, watch) => {
                watch.answered(plugin, token, headers > 0, body)
            }
            Role::Downstream(_, None) | Role::Upstream | Role::None => {}
        }
    }
}

impl RootContext for Root {
    fn on_configure(&mut self, size: usize) -> bool {
        match self.configure(&host::plugin_configuration(size)) {
            Ok(()) => true,
            Err(problem) => {
                log::error!("rankpin: {problem}");
                false
            }
        }
    }

    fn on_tick(&mut self) {
        match &mut self.role {
            Role::Downstream(plugin, watch) => {
                Self::report(plugin);
                seats::write();
                let kept = vm::with(|shared| shared.vm.keep_running(host::now()));
                let pages = (plugin.config.page_count, plugin.config.page_bytes);
                for change in kept.iter().flatten() {
                    store::change_page(change, pages);
                }
                if let Some(watch) = watch {
                    watch.tick(plugin);
                }
                // Last: what a stream starts there must not be taken for the root's.
                vm::with(|shared| shared.overdue()).into_iter().flatten().for_each(abi::knock);
            }
            Role::Watch(plugin, watch) => watch.tick(plugin),
            Role::Upstream | Role::None => {}
        }
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, id: u32) -> Option<Box<dyn HttpContext>> {
        Some(match &self.role {
            Role::Downstream(plugin, _) => Box::new(Downstream::new(id, Rc::clone(plugin))),
            Role::Upstream | Role::Watch(..) | Role::None => Box::new(Upstream::new(id)),
        })
    }
}
