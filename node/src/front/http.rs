//! The HTTP front: `POST /v1/check`.

mod body;

use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http_body_util::LengthLimitError;
use region::limiter::{Answer, Subject, Verdict};
use region::store::Store;
use serde::Serialize;

use self::body::{Malformed, parse};
use super::headers::{milliseconds, reset, retry_after, strictest};
use super::{Gate, is_closed};
use crate::telemetry::metrics::{Api, Code};

/// The largest body of a request.
const BODY_MAX: usize = 64 * 1024;

/// How long a body may take to arrive.
const BODY_WAIT: Duration = Duration::from_secs(10);

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The body of an answer.
#[derive(Debug, Serialize)]
struct Told<'a> {
    allowed: bool,
    #[serde(skip_serializing_if = "is_false")]
    degraded: bool,
    policies: Vec<PolicyTold<'a>>,
}

/// What one policy says.
#[derive(Debug, Serialize)]
struct PolicyTold<'a> {
    name: &'a str,
    allowed: bool,
    limit: u64,
    remaining: u64,
    reset_ms: Option<u64>,
    retry_ms: Option<u64>,
    decided_at_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fallback: Option<&'static str>,
}

/// The front's routes.
pub fn router<S: Store + 'static>(gate: Arc<Gate<S>>) -> Router {
    Router::new()
        .route("/v1/check", post(check::<S>).fallback(wrong_method::<S>))
        .fallback(wrong_path::<S>)
        .with_state(gate)
}

async fn check<S: Store>(State(gate): State<Arc<Gate<S>>>, request: Request) -> Response {
    let started = Instant::now();
    let body = match receive(request).await {
        Ok(body) => body,
        Err((code, refused)) => {
            gate.metrics().requested(code);
            return refused.into_response();
        }
    };
    let response = match parse(&body) {
        Ok(request) => {
            let pairs: Vec<(&str, &str)> = request
                .attributes
                .iter()
                .map(|(name, value)| (name.as_ref(), value.as_ref()))
                .collect();
            let subject = Subject {
                attributes: &pairs,
                cost: request.cost,
            };
            let answer = gate.check(&request.domain, &[subject], Duration::MAX).await;
            told(&gate, &answer)
        }
        Err(malformed) => {
            gate.metrics().requested(Code::HttpMalformed);
            malformed.into_response()
        }
    };
    gate.metrics().took(Api::Http, started.elapsed());
    response
}

async fn receive(request: Request) -> Result<Bytes, (Code, Malformed)> {
    let received = to_bytes(request.into_body(), BODY_MAX);
    match tokio::time::timeout(BODY_WAIT, received).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error))
            if error
                .source()
                .is_some_and(|cause| cause.is::<LengthLimitError>()) =>
        {
            Err((Code::HttpTooLarge, Malformed::too_large(BODY_MAX)))
        }
        Ok(Err(_)) => Err((Code::HttpMalformed, Malformed::broken_off())),
        Err(_) => Err((Code::HttpTimeout, Malformed::timeout())),
    }
}

fn told<S: Store>(gate: &Gate<S>, answer: &Answer) -> Response {
    let policies = gate.policies();
    let verdicts: Vec<&Verdict> = answer.subjects.iter().flatten().collect();
    let degraded = verdicts.iter().any(|verdict| verdict.fallback.is_some());
    let mut denials = verdicts.iter().filter(|verdict| !verdict.decision.allowed);
    let (status, code) = if answer.allowed {
        (StatusCode::OK, Code::HttpAllowed)
    } else if denials.all(|verdict| is_closed(policies, verdict)) {
        (StatusCode::SERVICE_UNAVAILABLE, Code::HttpUnavailable)
    } else {
        (StatusCode::TOO_MANY_REQUESTS, Code::HttpDenied)
    };
    gate.metrics().requested(code);
    let names = policies.policies();
    let told = verdicts.iter().map(|verdict| PolicyTold {
        name: names.get(verdict.policy).map_or("", |policy| policy.name()),
        allowed: verdict.decision.allowed,
        limit: verdict.decision.limit.0,
        remaining: verdict.decision.remaining.0,
        reset_ms: verdict.decision.reset_after.map(milliseconds),
        retry_ms: verdict.decision.retry_after.map(milliseconds),
        decided_at_us: verdict.stamp.map(|stamp| stamp.clock.0),
        fallback: verdict.fallback.map(|error| error.reason()),
    });
    let body = Told {
        allowed: answer.allowed,
        degraded,
        policies: told.collect(),
    };
    (
        status,
        fields(gate, answer.allowed, &verdicts),
        axum::Json(body),
    )
        .into_response()
}

fn fields<S: Store>(gate: &Gate<S>, allowed: bool, verdicts: &[&Verdict]) -> HeaderMap {
    let mut fields = HeaderMap::with_capacity(8);
    if let Some(verdict) = strictest(verdicts) {
        fields.insert(LIMIT, verdict.decision.limit.0.into());
        fields.insert(REMAINING, verdict.decision.remaining.0.into());
        if let Some(reset) = reset(gate.reset, verdict) {
            fields.insert(RESET, reset.into());
        }
        let texts = [
            (RATE_LIMIT, gate.labels.limit_field(verdicts)),
            (RATE_LIMIT_POLICY, gate.labels.policy_field(verdicts)),
        ];
        for (name, text) in texts {
            // Labels are printable by construction; a field that was not would be left out.
            if let Ok(value) = HeaderValue::try_from(text) {
                fields.insert(name, value);
            }
        }
    }
    if !allowed {
        fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = retry_after(gate.policies(), verdicts) {
            fields.insert(header::RETRY_AFTER, wait.into());
        }
    }
    fields
}

async fn wrong_method<S: Store>(State(gate): State<Arc<Gate<S>>>) -> Response {
    gate.metrics().requested(Code::HttpNotFound);
    let allow = [(header::ALLOW, HeaderValue::from_static("POST"))];
    (allow, Malformed::method()).into_response()
}

async fn wrong_path<S: Store>(State(gate): State<Arc<Gate<S>>>) -> Response {
    gate.metrics().requested(Code::HttpNotFound);
    Malformed::path().into_response()
}

const fn is_false(flag: &bool) -> bool {
    !*flag
}
