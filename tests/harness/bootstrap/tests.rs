//! Rewriting, on a small config of our own.

use super::*;

fn sample() -> Bootstrap {
    let text = r#"
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 9901}}}
static_resources:
  listeners:
  - name: main
    address: {socket_address: {address: 0.0.0.0, port_value: 8080}}
    filter_chains:
    - filters:
      - typed_config:
          early_header_mutation_extensions:
          - typed_config: {mutations: [{remove: x-rankpin-cluster}, {remove: x-rankpin-worker}, {remove: x-rankpin-rank}]}
          http_filters:
          - name: rankpin
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
              config:
                configuration: {value: '{"steering":"cluster"}'}
                vm_config: {code: {local: {filename: rankpin.wasm}}}
          - name: router
  clusters:
  - name: rankpin-service
    load_assignment: {endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 7460}}}}]}]}
  - name: rankpin-worker-a
    connect_timeout: 1s
  - name: rankpin-default
"#;
    Bootstrap { document: serde_saphyr::from_str(text).unwrap() }
}

#[test]
fn addresses_paths_and_deadlines_are_replaced_and_nothing_else() {
    let mut bootstrap = sample();
    bootstrap.wasm(Path::new("/x/y.wasm")).unwrap();
    bootstrap.free_ports().unwrap();
    bootstrap.service("127.0.0.1:1234".parse().unwrap()).unwrap();
    bootstrap.route_deadline(5000).unwrap();
    bootstrap.workers(&[("w0".to_owned(), "127.0.0.1:1".parse().unwrap())]).unwrap();
    let text = bootstrap.json();
    for gone in ["9901", "8080", "7460", "rankpin-worker-a", "\"rankpin.wasm\""] {
        assert!(!text.contains(gone), "{gone} in {text}");
    }
    for there in ["1234", "rankpin-worker-w0", "/x/y.wasm", r#"route_deadline_ms\":5000"#, "\"1s\""] {
        assert!(text.contains(there), "{there} not in {text}");
    }
}

#[test]
fn the_filter_can_be_taken_out() {
    let mut bootstrap = sample();
    bootstrap.without_filter();
    assert!(!bootstrap.json().contains(WASM_TYPE) && bootstrap.json().contains("router"));
}

#[test]
fn a_trusted_listener_keeps_what_callers_name_and_nothing_else() {
    let mut bootstrap = sample();
    bootstrap.trusted().unwrap();
    let text = bootstrap.json();
    assert!(text.contains(r#"[{"remove":"x-rankpin-cluster"}]"#), "{text}");
    assert!(text.contains(r#"trust\":\"callers"#), "{text}");
}
