//! The shipped configs are configs: Envoy takes each as it is but for the path of the filter, and refuses what the filter
//! refuses, with every fault named.

use e2e::bootstrap::Bootstrap;
use e2e::scratch::Scratch;
use e2e::{Steering, artifacts, envoy};

#[test]
fn envoy_accepts_each() {
    let scratch = Scratch::new().unwrap();
    let mut files = 0;
    for entry in artifacts::root().join("envoy").read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        // As it is, and with what a service with a token wants.
        let both = [Bootstrap::read(&path), Bootstrap::read_with_token(&path, "0123456789abcdef")]
            .map(Result::unwrap);
        for mut bootstrap in both {
            bootstrap.built().unwrap();
            let said = envoy::validate(&bootstrap, scratch.path()).unwrap();
            assert!(said.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&said.stderr));
        }
        files += 1;
    }
    assert!(files >= 2, "{files} configs in envoy/");
}

#[test]
fn envoy_refuses_a_bad_plugin_configuration_with_all_its_faults() {
    let scratch = Scratch::new().unwrap();
    let text = r#"{"steering":"sideways","service":{"route_deadline_ms":0,"cluster":""},"session":{"sources":["header:"]},"typo":1}"#;
    for steering in [Steering::Cluster, Steering::Endpoints] {
        let said = refused(&scratch, steering, text);
        for path in ["steering", "service.route_deadline_ms", "service.cluster", "session.sources[0]", "typo"]
        {
            assert!(said.contains(&format!("{path}: ")), "{path} is not named in\n{said}");
        }
    }
}

#[test]
fn envoy_refuses_a_plugin_configuration_that_is_no_json() {
    let scratch = Scratch::new().unwrap();
    for text in ["{", "[]", "\u{1F680}", "{\"steering\":}"] {
        let said = refused(&scratch, Steering::Cluster, text);
        assert!(said.contains("plugin configuration is refused"), "{text:?}: {said}");
    }
}

/// Without its gauges the filter would count nothing and see no news: it must not start as if all were well.
#[tokio::test]
async fn envoy_refuses_to_start_where_statistics_hide_the_gauges() {
    let scratch = Scratch::new().unwrap();
    let mut bootstrap = Bootstrap::shipped(Steering::Endpoints).unwrap();
    bootstrap.without_stats("wasmcustom.rankpin.");
    let refused = envoy::Envoy::start("hidden", scratch.path(), &bootstrap, 1).await;
    let said = refused.expect_err("Envoy starts without the filter's gauges").to_string();
    let told: Vec<&str> = said.lines().filter(|line| line.contains("gauges do not keep")).collect();
    let all = "let stats_config.stats_matcher of the bootstrap include the prefix 'wasmcustom.rankpin.'";
    assert!(!told.is_empty() && told.iter().all(|line| line.contains(all)), "{said}");
}

/// What Envoy says when it refuses.
fn refused(scratch: &Scratch, steering: Steering, text: &str) -> String {
    let mut bootstrap = Bootstrap::shipped(steering).unwrap();
    bootstrap.plugin_text(text).unwrap();
    let said = envoy::validate(&bootstrap, scratch.path()).unwrap();
    assert!(!said.status.success(), "Envoy takes {text:?}");
    String::from_utf8_lossy(&said.stderr).into_owned()
}
