//! Serves the OpenAPI document. It is written by hand; a test compares its paths with the routes.

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// The document.
pub const DOCUMENT: &str = include_str!("../openapi.json");

/// `GET /openapi.json`.
pub async fn document() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}

#[cfg(test)]
mod tests {
    use super::super::ROUTES;
    use super::DOCUMENT;
    use serde_json::Value;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn the_document_lists_exactly_the_routes() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let described: BTreeMap<&str, BTreeSet<&str>> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(path, item)| {
                (path.as_str(), item.as_object().unwrap().keys().map(String::as_str).collect())
            })
            .collect();
        let mut served: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (_, path, methods) in ROUTES {
            served.entry(path).or_default().extend(*methods);
        }
        assert_eq!(described, served);
    }

    #[test]
    fn every_reference_in_the_document_leads_somewhere() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let mut references = Vec::new();
        collect(&document, &mut references);
        assert!(!references.is_empty());
        for reference in references {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }

    fn collect(value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                into.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|v| collect(v, into));
            }
            Value::Array(list) => list.iter().for_each(|v| collect(v, into)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}
