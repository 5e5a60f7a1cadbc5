//! The recorded frames: `tests/golden/kv_events`, with a README of where each is from.

use serde_json::Value;
use std::path::PathBuf;

/// One recorded message.
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) frames: Vec<Vec<u8>>,
    /// Port it came by; ports are base + rank.
    pub(crate) port: Option<u64>,
    /// `replay…` or `live`, where recorded; `DEALER` and `REQ` are replays.
    pub(crate) kind: Option<String>,
    /// The payload as JSON, of synthetic ones.
    pub(crate) shown: Option<Value>,
}

impl Sample {
    pub(crate) fn payload(&self) -> &[u8] {
        self.frames.last().map_or(&[], Vec::as_slice)
    }

    /// Replays end with a number that is no number.
    pub(crate) fn is_end(&self) -> bool {
        self.frames.iter().any(|frame| frame == &[0xff; 8])
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/kv_events")
}

pub(crate) fn read(file: &str) -> String {
    std::fs::read_to_string(folder().join(file)).expect("a sample")
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.bytes().map(|d| u8::try_from((d as char).to_digit(16).unwrap()).unwrap()).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn frames(value: &Value) -> Vec<Vec<u8>> {
    value.as_array().unwrap().iter().map(|frame| hex(frame.as_str().unwrap())).collect()
}

/// All messages of one recording.
pub(crate) fn recorded(file: &str) -> Vec<Sample> {
    let row = |(line, text): (usize, &str)| {
        let row: Value = serde_json::from_str(text).expect("a row");
        Sample {
            name: format!("{file}:{}", line + 1),
            frames: frames(&row["frames"]),
            port: row["port"].as_u64(),
            kind: row["kind"].as_str().map(str::to_owned),
            shown: None,
        }
    };
    read(file).lines().enumerate().map(row).collect()
}

/// Every recording there is.
pub(crate) fn recordings() -> Vec<String> {
    let names = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| name.ends_with(".jsonl"));
    names.sort();
    names
}

/// The synthetic ones: every layout, and malformed cases.
pub(crate) fn synthetic() -> Vec<Sample> {
    let all: Value = serde_json::from_str(&read("synthetic_samples.json")).unwrap();
    let sample = |value: &Value| Sample {
        name: value["name"].as_str().unwrap().to_owned(),
        frames: frames(&value["frames_hex"]),
        port: None,
        kind: None,
        shown: Some(value["payload_decoded"].clone()),
    };
    all.as_array().unwrap().iter().map(sample).collect()
}

pub(crate) fn synthetic_named(name: &str) -> Sample {
    synthetic().into_iter().find(|sample| sample.name == name).unwrap_or_else(|| panic!("no sample {name}"))
}
