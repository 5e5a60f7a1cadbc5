//! What surrounds every handler, tried with one that panics.

use super::{Service, surround};
use crate::config::ServiceConfig;
use crate::persist::Store;
use crate::service::{Followers, Setup};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::get;
use std::sync::Arc;
use tower::ServiceExt;

#[tokio::test]
async fn a_panic_is_one_500_and_the_next_request_is_served() {
    let setup = Setup {
        config: ServiceConfig::without_file(),
        store: Store::open(None).unwrap(),
        token: None,
        followers: Followers::Nobody,
    };
    let service = Arc::new(Service::new(setup));
    let routes = Router::new().route("/boom", get(panics)).route("/healthz", get(super::sight::healthz));
    let router = surround(routes, &service, "data", 1 << 20);
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    let boom = router.clone().oneshot(get("/boom")).await.unwrap();
    assert_eq!(boom.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(boom.headers()["content-type"], "application/problem+json");
    assert_eq!(router.oneshot(get("/healthz")).await.unwrap().status(), StatusCode::OK);
}

async fn panics() {
    panic!("on purpose");
}
