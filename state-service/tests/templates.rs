//! What a chat template may take, counted by the allocator: whatever it does, a prompt costs bounded memory and ends in a clear reason.

use peak_alloc::PeakAlloc;
use state_service::tokenize::trial::Trial;
use state_service::tokenize::{Reason, Which};
use std::path::Path;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/engine/model");
const BODY: &str = r#"{"messages": [{"role": "user", "content": "hello"}]}"#;
/// Data of one rendering, and what is being made when that is noticed.
const PEAK_BYTES_MAX: usize = 384 << 20;

fn with_template(template: &str) -> Trial {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(Path::new(MODEL).join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    Trial::load(folder.path(), Which::Fast).unwrap()
}

const NESTED: &str = "{% set a = [1] * 2000 %}{% set b = [a] * 2000 %}{% set c = [b] * 100 %}";

/// One test, so that nothing else allocates meanwhile.
#[test]
fn no_template_takes_more_memory_than_is_stated() {
    let nested = |use_it: &str| format!("{NESTED}{use_it}");
    let long = "([('x' * 1000000)] * 500)";
    let templates = [
        "{{ '%1000000000d'|format(1) }}".to_owned(),
        "{{ '%-1000000000s'|format('') }}".to_owned(),
        "{{ '%.1000000000f'|format(1.5) }}".to_owned(),
        "{{ '%*d'|format(1000000000, 1) }}".to_owned(),
        "{{ '{:1000000000}'.format(1) }}".to_owned(),
        "{{ '{:.1000000000f}'.format(0.5) }}".to_owned(),
        "{{ '{:{}}'.format(1, 1000000000) }}".to_owned(),
        "{{ ('{0}' * 20000).format('x' * 100000) }}".to_owned(),
        "{{ ('%s' * 20000)|format(*(['x' * 100000] * 20000)) }}".to_owned(),
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}".to_owned(),
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}".to_owned(),
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}".to_owned(),
        "{{ ('x' * 1000000)|replace('x', 'y' * 1500) }}".to_owned(),
        "{{ ('x' * 1000000).replace('x', 'y' * 1500) }}".to_owned(),
        format!("{{{{ {long}|join }}}}"),
        format!("{{{{ ''.join({long}) }}}}"),
        format!("{{{{ {long}|tojson }}}}"),
        format!("{{{{ {long}|tojson(indent=2) }}}}"),
        format!("{{{{ {long}|string }}}}"),
        "{{ ([1] * 1000)|tojson(separators=['x' * 10000000, ':']) }}".to_owned(),
        "{{ ('x\n' * 100000)|indent(100000) }}".to_owned(),
        "{{ 'x'|indent(2000000000, true) }}".to_owned(),
        "{{ strftime_now('%F' * 20000000) }}".to_owned(),
        "{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}".to_owned(),
        nested("{{ c }}"),
        nested("{{ c|tojson }}"),
        nested("{{ c|string }}"),
        nested("{{ '%s'|format(c) }}"),
        nested("{{ '{}'.format(c) }}"),
        nested("{{ [c]|join }}"),
        nested("{{ ''.join([c]) }}"),
    ];
    let mut wrong = Vec::new();
    for template in &templates {
        let model = with_template(template);
        ALLOCATOR.reset_peak_usage();
        let before = ALLOCATOR.current_usage();
        let begun = std::time::Instant::now();
        let result = model.text(BODY).map(|text| text.len());
        let peak = ALLOCATOR.peak_usage().saturating_sub(before);
        println!("{:8} KiB {:6} ms {result:?} {template}", peak >> 10, begun.elapsed().as_millis());
        let refused = matches!(result, Err(Reason::TooLong | Reason::TooCostly | Reason::Template));
        if peak > PEAK_BYTES_MAX || !refused {
            wrong.push(format!("{} MiB, {result:?}: {template}", peak >> 20));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
