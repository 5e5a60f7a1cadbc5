//! Envoy's counters and gauges: defined once by name, then changed by number.

use super::OK;

const COUNTER: u32 = 0;
const GAUGE: u32 = 1;

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_define_metric(kind: u32, name: *const u8, name_size: usize, id: *mut u32) -> u32;
    fn proxy_increment_metric(id: u32, offset: i64) -> u32;
    fn proxy_record_metric(id: u32, value: u64) -> u32;
    fn proxy_get_metric(id: u32, value: *mut u64) -> u32;
}

fn metric(kind: u32, name: &str) -> Option<u32> {
    let mut id = 0;
    // SAFETY: the slice lives through the call; `id` is ours.
    let done = unsafe { proxy_define_metric(kind, name.as_ptr(), name.len(), &mut id) };
    (done == OK).then_some(id)
}

pub(crate) fn counter(name: &str) -> Option<u32> {
    metric(COUNTER, name)
}

pub(crate) fn gauge(name: &str) -> Option<u32> {
    metric(GAUGE, name)
}

pub(crate) fn increment(metric: u32, by: i64) {
    // SAFETY: integers only.
    let _ = unsafe { proxy_increment_metric(metric, by) };
}

pub(crate) fn record(metric: u32, value: u64) {
    // SAFETY: integers only.
    let _ = unsafe { proxy_record_metric(metric, value) };
}

pub(crate) fn metric_value(metric: u32) -> Option<u64> {
    let mut value = 0;
    // SAFETY: `value` is ours.
    let done = unsafe { proxy_get_metric(metric, &mut value) };
    (done == OK).then_some(value)
}
