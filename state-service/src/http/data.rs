//! What filters and Envoy ask: route, report and discovery. Extract, ask the state, answer; nothing is decided here.

use super::body::{DataBody, Wire, decode};
use super::problem::Problem;
use super::show::json;
use crate::service::Service;
use crate::xds::{self, DiscoveryRequest, Resource};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use routing::contract::{PageUpload, REPORT_ENTRIES_MAX, Report, RouteRequest, UPLOAD_BINDINGS_MAX};
use std::sync::Arc;

/// `POST /v1/route`.
pub async fn route(
    State(service): State<Arc<Service>>,
    Wire(request): Wire<RouteRequest>,
) -> Result<Response, Problem> {
    let reply = service.route(request).await?;
    Ok(json(&reply))
}

/// `POST /v1/report`.
pub async fn report(
    State(service): State<Arc<Service>>,
    DataBody(body): DataBody,
) -> Result<StatusCode, Problem> {
    let report: Report = decode(&body)?;
    if report.entries.len() > REPORT_ENTRIES_MAX {
        let detail =
            format!("{} entries, at most {REPORT_ENTRIES_MAX} are taken at once", report.entries.len());
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "report_too_long",
            "The report is too long",
            detail,
        ));
    }
    if report.upstream_role_missing > 0 {
        service.upstream_role_missing(&report.caller.node, report.upstream_role_missing);
    }
    service.report(report)?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /v1/pages`.
pub async fn pages(
    State(service): State<Arc<Service>>,
    Wire(upload): Wire<PageUpload>,
) -> Result<StatusCode, Problem> {
    if upload.bindings.len() > UPLOAD_BINDINGS_MAX {
        let detail =
            format!("{} bindings, at most {UPLOAD_BINDINGS_MAX} are taken at once", upload.bindings.len());
        let title = "The upload is too long";
        return Err(Problem::new(StatusCode::BAD_REQUEST, "upload_too_long", title, detail));
    }
    service.pages(upload)?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /v3/discovery:clusters`.
pub async fn clusters(
    state: State<Arc<Service>>,
    request: Wire<DiscoveryRequest>,
) -> Result<Response, Problem> {
    discover(state, request, Resource::Cluster)
}

/// `POST /v3/discovery:endpoints`.
pub async fn endpoints(
    state: State<Arc<Service>>,
    request: Wire<DiscoveryRequest>,
) -> Result<Response, Problem> {
    discover(state, request, Resource::Endpoint)
}

fn discover(
    State(service): State<Arc<Service>>,
    Wire(request): Wire<DiscoveryRequest>,
    resource: Resource,
) -> Result<Response, Problem> {
    if !request.type_url.is_empty() && request.type_url != resource.type_url() {
        return Err(Problem::malformed(format!("this path serves {}", resource.type_url())));
    }
    let view = service.discover(resource, &request)?;
    if view.version == request.version_info {
        // Envoy takes it as "nothing new" and polls again after its refresh delay.
        return Ok(StatusCode::NOT_MODIFIED.into_response());
    }
    let resources = match resource {
        Resource::Cluster => xds::clusters(&view.members),
        Resource::Endpoint => xds::assignments(&view.pools, &view.members, &request.resource_names),
    };
    Ok(json(&xds::response(resource, &view.version, resources)))
}
