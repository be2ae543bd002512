//! The admin interface: metrics, health, the state of a key, members; and, with a token, changes.

mod key;
mod links;

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use region::limiter::Limiter;
use region::store::Store;
use serde::Serialize;
use serde_json::json;
use subtle::ConstantTimeEq;

use crate::config::{LinkConfig, Secret};
use crate::telemetry::health::Health;
use crate::telemetry::metrics::Metrics;

/// What the node knows of the others, and what can be done to its links.
pub trait Cluster: Send + Sync {
    /// All members that are known, this node included.
    fn members(&self) -> Vec<Member>;

    /// Replaces what the link shaper does.
    ///
    /// # Errors
    /// If the node was started without a link shaper. Nothing was changed.
    fn shape(&self, links: Vec<LinkConfig>) -> Result<(), ShaperOff>;

    /// Tells the others that this node leaves. The caller bounds how long that may take.
    fn leave(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// A node of the cluster, as seen from here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its region.
    pub region: String,
    /// Where it is reached.
    pub address: SocketAddr,
    /// Whether it is `alive`, `suspect` or `down`.
    pub state: &'static str,
    /// Which life of the node it is.
    pub incarnation: u64,
}

/// Links cannot be shaped: the node was started without `gossip.links`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the link shaper is off; it is on only if `gossip.links` is configured")]
pub struct ShaperOff;

/// A node without gossip.
#[derive(Clone, Copy, Debug)]
pub struct Alone;

/// What the admin interface shows and changes.
pub struct Admin<S> {
    /// The decision path.
    pub limiter: Arc<Limiter<S>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The node's readiness.
    pub health: Arc<Health>,
    /// The other nodes.
    pub cluster: Arc<dyn Cluster>,
    /// What a call that changes something must bring.
    pub token: Option<Secret<String>>,
}

/// A refusal, as JSON.
#[derive(Debug)]
struct Refused(StatusCode, &'static str, String);

/// The interface's routes.
pub fn router<S: Store + 'static>(admin: Admin<S>) -> Router {
    let admin = Arc::new(admin);
    let changes = Router::new()
        .route("/v1/links", put(links::replace::<S>))
        .route("/v1/drain", post(drain::<S>))
        .route_layer(from_fn_with_state(Arc::clone(&admin), authorize::<S>));
    Router::new()
        .route("/metrics", get(metrics::<S>))
        .route("/livez", get(live))
        .route("/healthz", get(live))
        .route("/readyz", get(ready::<S>))
        .route("/v1/key", get(key::show::<S>))
        .route("/v1/members", get(members::<S>))
        .merge(changes)
        .fallback(nothing_here)
        .with_state(admin)
}

async fn metrics<S: Store>(State(admin): State<Arc<Admin<S>>>) -> Response {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match admin.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics could not be rendered");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn live() -> &'static str {
    "ok\n"
}

async fn ready<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let checks = admin.health.checks();
    let ready = checks.iter().all(|check| check.problem.is_none());
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let verbose = query.iter().any(|(name, _)| name == "verbose");
    let mut text = String::new();
    for check in checks {
        match check.problem {
            Some(problem) => {
                text.push_str(&format!("[-]{} failed: {problem}\n", check.name));
            }
            None if verbose => text.push_str(&format!("[+]{} ok\n", check.name)),
            None => {}
        }
    }
    text.push_str(if ready { "ok\n" } else { "not ready\n" });
    (status, text).into_response()
}

async fn members<S: Store>(State(admin): State<Arc<Admin<S>>>) -> Response {
    Json(json!({ "members": admin.cluster.members() })).into_response()
}

async fn drain<S: Store>(State(admin): State<Arc<Admin<S>>>) -> Response {
    tracing::info!("asked to drain");
    admin.health.ask_to_drain();
    (StatusCode::ACCEPTED, Json(json!({ "draining": true }))).into_response()
}

async fn nothing_here() -> Refused {
    let reason = "there is nothing at this path".to_owned();
    Refused(StatusCode::NOT_FOUND, "not_found", reason)
}

async fn authorize<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    request: Request,
    next: Next,
) -> Response {
    match authorized(admin.token.as_ref(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

fn authorized(token: Option<&Secret<String>>, headers: &HeaderMap) -> Result<(), Refused> {
    let Some(token) = token else {
        return Err(Refused(
            StatusCode::FORBIDDEN,
            "no_token",
            "changes need `admin.token_file` to be configured".to_owned(),
        ));
    };
    let given = headers
        .get(header::AUTHORIZATION)
        .map(HeaderValue::as_bytes);
    let given = given.and_then(|value| value.strip_prefix(b"Bearer "));
    let Some(given) = given else {
        return Err(Refused(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "changes need the header `Authorization: Bearer <token>`".to_owned(),
        ));
    };
    if bool::from(given.ct_eq(token.reveal().as_bytes())) {
        return Ok(());
    }
    let reason = "this is not the token".to_owned();
    Err(Refused(StatusCode::FORBIDDEN, "forbidden", reason))
}

impl Cluster for Alone {
    fn members(&self) -> Vec<Member> {
        Vec::new()
    }

    fn shape(&self, _links: Vec<LinkConfig>) -> Result<(), ShaperOff> {
        Err(ShaperOff)
    }

    fn leave(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }
}

impl<S> fmt::Debug for Admin<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").finish_non_exhaustive()
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self(status, error, reason) = self;
        let body = Json(json!({ "error": error, "reason": reason }));
        if status == StatusCode::UNAUTHORIZED {
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            return (status, challenge, body).into_response();
        }
        (status, body).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_is_refused_without_the_right_token() {
        let token = Secret::new("correct horse battery".to_owned());
        let status = |token: Option<&Secret<String>>, value: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(header::AUTHORIZATION, value.parse().expect("printable"));
            }
            authorized(token, &headers)
                .err()
                .map(|refused| refused.0.as_u16())
        };
        let token = Some(&token);
        assert_eq!(status(token, Some("Bearer correct horse battery")), None);
        assert_eq!(
            status(token, Some("Bearer correct horse batter")),
            Some(403)
        );
        assert_eq!(status(token, Some("Bearer ")), Some(403));
        assert_eq!(status(token, Some("Basic abc")), Some(401));
        assert_eq!(status(token, None), Some(401));
        assert_eq!(status(None, Some("Bearer ")), Some(403));
    }
}
