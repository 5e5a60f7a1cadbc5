//! Publishers that come late, begin anew, go away and return; every engine's framing of a replay.

use super::fleet::{Fleet, telling};
use e2e::EngineSpec;

/// E3: sequence 0 at the same address is another life: what was held is gone, what follows is heard.
#[tokio::test(flavor = "multi_thread")]
async fn e3_a_restarted_rank_is_believed_anew() {
    let fleet = Fleet::start(vec![telling("w0", 2)]).await;
    for rank in [0, 1] {
        for prompt in 0..5 {
            fleet.compute("w0", rank, prompt, 3).await;
        }
        fleet.holds("w0", rank, 15).await;
    }
    let epochs = fleet.stream("epoch").await;
    fleet.engine("w0").kv_fault("restart", Some(0)).await.unwrap();
    fleet.compute("w0", 0, 7, 2).await;
    assert_eq!(fleet.published("w0", 0).await, 1, "it counts from 0");
    let shown = fleet.until("w0", 0, "two blocks", |shown| shown["blocks"]["gpu"] == 2).await;
    assert_eq!((&shown["cold"], &shown["last_seq"]), (&false.into(), &0.into()));
    fleet.holds("w0", 1, 15).await;
    assert_eq!(fleet.stream("epoch").await, epochs + 1);
    // As far as before and further: numbers of the life before mean nothing.
    for prompt in 10..17 {
        fleet.compute("w0", 0, prompt, 1).await;
    }
    fleet.holds("w0", 0, 2 + 7).await;
}

/// The publisher opens after the worker was declared; it goes away, and comes back with the same life.
#[tokio::test(flavor = "multi_thread")]
async fn late_publishers_are_waited_for_and_found_again() {
    let fleet = Fleet::undeclared(vec![telling("w0", 2)]).await;
    let engine = fleet.engine("w0");
    engine.kv_fault("close", None).await.unwrap();
    fleet.compute("w0", 0, 1, 3).await;
    fleet.service.register(engine).await.unwrap();
    fleet.linked("w0", 0, "connecting").await;
    engine.kv_fault("open", Some(0)).await.unwrap();
    // What was published before there was a connection comes by replay.
    let shown = fleet.holds("w0", 0, 3).await;
    assert_eq!(shown["cold"], false);
    fleet.linked("w0", 1, "connecting").await;
    engine.kv_fault("open", Some(1)).await.unwrap();
    fleet.linked("w0", 1, "up").await;

    let epochs = fleet.stream("epoch").await;
    engine.kv_fault("close", Some(0)).await.unwrap();
    fleet.linked("w0", 0, "connecting").await;
    let shown = fleet.shown("w0", 0).await;
    assert_eq!(shown["blocks"]["gpu"], 3, "a lost connection empties no cache");
    fleet.compute("w0", 0, 2, 4).await;
    engine.kv_fault("open", Some(0)).await.unwrap();
    let shown = fleet.holds("w0", 0, 7).await;
    assert_eq!(shown["cold"], false);
    assert_eq!(fleet.stream("epoch").await, epochs, "the same life");
}

/// E1, E8: arrays and maps, signed and unsigned and long hashes, replies with a topic and without: each engine in its versions is
/// joined late, so that its replay is read, and then heard live.
#[tokio::test(flavor = "multi_thread")]
async fn e1_e8_every_engine_is_read_replayed_and_live() {
    let engines = [
        ("vllm", "0.9.2", ""),
        ("vllm", "0.25.0", "bytes"),
        ("vllm", "0.26.0", ""),
        ("vllm", "0.33.0", "bytes"),
        ("sglang", "0.5.8", ""),
        ("sglang", "0.5.21", ""),
        ("sglang", "0.5.23", ""),
        ("trtllm", "1.2.0", ""),
    ];
    let spec = |(engine, version, hash): (&str, &str, &str)| {
        let spec = EngineSpec::new(&format!("{engine}-{version}"), 1).kv_events().engine(engine, version);
        let spec = spec.with(&["--kv-topic", "kv@here"]);
        if hash.is_empty() { spec } else { spec.with(&["--kv-hash", hash]) }
    };
    let fleet = Fleet::undeclared(engines.map(spec).to_vec()).await;
    let names: Vec<String> = fleet.engines.iter().map(|engine| engine.name().to_owned()).collect();
    for name in &names {
        let engine = fleet.engine(name);
        for prompt in 0..3 {
            engine.compute(&super::fleet::tokens(prompt, 2), None).await.unwrap();
        }
        // vLLM from 0.31 on tells each port; of the others the row is declared.
        let at = match name.as_str() {
            "vllm-0.33.0" => "discover".into(),
            _ => engine.kv_declared().await.unwrap(),
        };
        fleet.declare(name, at).await;
    }
    for name in &names {
        let shown = fleet.holds(name, 0, 6).await;
        assert_eq!((&shown["cold"], &shown["link"]), (&false.into(), &"up".into()), "{name}");
    }
    assert!(fleet.stream("replayed").await >= 3 * names.len() as u64);
    for name in &names {
        fleet.engine(name).compute(&super::fleet::tokens(9, 3), None).await.unwrap();
        fleet.holds(name, 0, 9).await;
    }
}
