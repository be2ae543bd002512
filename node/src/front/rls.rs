//! The gRPC front: Envoy's `envoy.service.ratelimit.v3`.
//!
//! Each descriptor is one subject, and its entries are the subject's attributes. Keys may repeat in
//! a descriptor: the first keeps its name, the second is `key#2`, and so on; nothing is lost.
//! `current_limit` is the policy's rate; `limit_remaining` may exceed it by the burst. For a
//! descriptor over its limit `duration_until_reset` is the time after which it passes, because that
//! is what Envoy makes `Retry-After` of.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use region::limiter::{Answer, Subject, Verdict};
use region::policy::{Policy, Rule};
use region::store::Store;
use region::units::{EXACT_MAX, Tokens};
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::Gate;
use super::headers::{retry_after, seconds, strictest};
use crate::apis::envoy::config::core::v3::HeaderValue;
use crate::apis::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::apis::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::apis::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use crate::apis::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use crate::apis::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::telemetry::metrics::{self, Api};

/// The largest request.
const MESSAGE_MAX: usize = 256 * 1024;

/// The most descriptors of a request, and the most entries of a descriptor.
const DESCRIPTORS_MAX: usize = 100;
const ENTRIES_MAX: usize = 64;

/// What a last try and the way back may need of a caller's deadline.
const ANSWER_TIME: Duration = Duration::from_millis(15);

/// The names under which the health service knows the front; the last is that of the reference
/// service, which people's probes have.
const HEALTH_NAMES: [&str; 3] = [
    "",
    "envoy.service.ratelimit.v3.RateLimitService",
    "ratelimit",
];

/// The front's readiness, as its health service tells it.
#[derive(Clone, Debug)]
pub struct GrpcHealth(HealthReporter);

/// The service itself.
#[derive(Debug)]
struct Rls<S> {
    gate: Arc<Gate<S>>,
    limits: Vec<Option<RateLimit>>,
}

/// A descriptor as what is decided on.
struct Asked<'a> {
    attributes: Vec<(Cow<'a, str>, &'a str)>,
    cost: Tokens,
    gives_back: bool,
}

/// The front's routes, and what tells its clients whether it serves.
pub async fn router<S: Store + 'static>(gate: Arc<Gate<S>>) -> (Router, GrpcHealth) {
    let health = GrpcHealth(HealthReporter::new());
    health.set(ServingStatus::Serving).await;
    let service = HealthService::from_health_reporter(health.0.clone());
    let policies = gate.policies().policies();
    let rls = Rls {
        limits: policies.iter().map(current_limit).collect(),
        gate,
    };
    let rls = RateLimitServiceServer::new(rls).max_decoding_message_size(MESSAGE_MAX);
    let routes = Routes::new(rls).add_service(HealthServer::new(service));
    (routes.prepare().into_axum_router(), health)
}

impl GrpcHealth {
    /// Tells every client that watches, and every probe, that the node is about to stop.
    pub async fn set_draining(&self) {
        self.set(ServingStatus::NotServing).await;
    }

    async fn set(&self, status: ServingStatus) {
        for name in HEALTH_NAMES {
            self.0.set_service_status(name, status).await;
        }
    }
}

#[tonic::async_trait]
impl<S: Store + 'static> RateLimitService for Rls<S> {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let started = Instant::now();
        let most = patience(request.metadata());
        let request = request.into_inner();
        if let Err(reason) = check_shape(&request) {
            self.gate.metrics().requested(metrics::Code::RlsMalformed);
            return Err(Status::invalid_argument(reason));
        }
        let response = self.decide(&request, most).await;
        self.gate.metrics().took(Api::Rls, started.elapsed());
        Ok(Response::new(response))
    }
}

impl<S: Store> Rls<S> {
    async fn decide(&self, request: &RateLimitRequest, most: Duration) -> RateLimitResponse {
        let overrides = request.descriptors.iter().filter(|one| one.limit.is_some());
        for _ in overrides {
            self.gate.metrics().overrides_ignored.inc();
        }
        let descriptors = request.descriptors.iter();
        let asked: Vec<Asked<'_>> = descriptors
            .map(|descriptor| Asked::new(descriptor, request.hits_addend))
            .collect();
        let checked = self.ask(request, &asked, Some(most)).await;
        let given = self.ask(request, &asked, None).await;
        let allowed = checked.as_ref().is_none_or(|answer| answer.allowed);
        let mut checked = checked
            .map_or_else(Vec::new, |answer| answer.subjects)
            .into_iter();
        let mut given = given
            .map_or_else(Vec::new, |answer| answer.subjects)
            .into_iter();
        let subjects: Vec<Vec<Verdict>> = asked
            .iter()
            .map(|one| {
                if one.gives_back {
                    given.next()
                } else {
                    checked.next()
                }
            })
            .map(Option::unwrap_or_default)
            .collect();
        let (overall, code) = if allowed {
            (Code::Ok, metrics::Code::RlsOk)
        } else {
            (Code::OverLimit, metrics::Code::RlsOverLimit)
        };
        self.gate.metrics().requested(code);
        let verdicts: Vec<&Verdict> = subjects.iter().flatten().collect();
        RateLimitResponse {
            overall_code: overall.into(),
            statuses: subjects.iter().map(|one| self.status(one)).collect(),
            response_headers_to_add: self.headers(allowed, &verdicts),
            ..RateLimitResponse::default()
        }
    }

    /// Asks about the descriptors that take, within a time, or about those that give back, if there
    /// are any.
    async fn ask(
        &self,
        request: &RateLimitRequest,
        asked: &[Asked<'_>],
        takes_within: Option<Duration>,
    ) -> Option<Answer> {
        let gives_back = takes_within.is_none();
        let chosen = asked.iter().filter(|one| one.gives_back == gives_back);
        let pairs: Vec<(Vec<(&str, &str)>, Tokens)> = chosen
            .map(|one| {
                let pairs = one.attributes.iter();
                let pairs = pairs.map(|(name, value)| (name.as_ref(), *value));
                (pairs.collect(), one.cost)
            })
            .collect();
        if pairs.is_empty() {
            return None;
        }
        let subjects: Vec<Subject<'_>> = pairs
            .iter()
            .map(|(attributes, cost)| Subject {
                attributes,
                cost: *cost,
            })
            .collect();
        Some(match takes_within {
            Some(most) => self.gate.check(&request.domain, &subjects, most).await,
            None => self.gate.refund(&request.domain, &subjects).await,
        })
    }

    fn status(&self, verdicts: &[Verdict]) -> DescriptorStatus {
        let verdicts: Vec<&Verdict> = verdicts.iter().collect();
        let Some(verdict) = strictest(&verdicts) else {
            return DescriptorStatus {
                code: Code::Ok.into(),
                ..DescriptorStatus::default()
            };
        };
        let decision = &verdict.decision;
        let (code, wait) = if decision.allowed {
            (Code::Ok, decision.reset_after)
        } else {
            (
                Code::OverLimit,
                decision.retry_after.or(decision.reset_after),
            )
        };
        DescriptorStatus {
            code: code.into(),
            current_limit: self.limits.get(verdict.policy).cloned().flatten(),
            limit_remaining: saturated(decision.remaining.0),
            duration_until_reset: wait.map(whole_seconds),
            quota: None,
        }
    }

    /// The `RateLimit` fields and, on a denial, `Retry-After`. `X-RateLimit-*` are Envoy's to make
    /// from the statuses: it appends, and would have them twice.
    fn headers(&self, allowed: bool, verdicts: &[&Verdict]) -> Vec<HeaderValue> {
        if verdicts.is_empty() {
            return Vec::new();
        }
        let labels = &self.gate.labels;
        let mut headers = vec![
            header("ratelimit", labels.limit_field(verdicts)),
            header("ratelimit-policy", labels.policy_field(verdicts)),
        ];
        let wait = retry_after(self.gate.policies(), verdicts);
        if let Some(wait) = wait.filter(|_| !allowed) {
            headers.push(header("retry-after", wait.to_string()));
        }
        headers
    }
}

impl<'a> Asked<'a> {
    fn new(descriptor: &'a RateLimitDescriptor, addend: u32) -> Self {
        let mut attributes: Vec<(Cow<'a, str>, &'a str)> = Vec::new();
        for entry in &descriptor.entries {
            let earlier = descriptor.entries.iter().take(attributes.len());
            let name = match earlier.filter(|other| other.key == entry.key).count() {
                0 => Cow::Borrowed(entry.key.as_str()),
                repeats => Cow::Owned(format!("{}#{}", entry.key, repeats + 1)),
            };
            attributes.push((name, entry.value.as_str()));
        }
        // The request's addend is a plain number: 0 means that it was not set. A descriptor's own 0
        // means to look without taking. What is too much for any limit stays too much.
        let hits = descriptor
            .hits_addend
            .unwrap_or_else(|| u64::from(addend.max(1)));
        Self {
            attributes,
            cost: Tokens(hits.min(EXACT_MAX)),
            gives_back: descriptor.is_negative_hits,
        }
    }
}

/// How long a request may wait for a grant: its caller's deadline less what the answer needs. An
/// Envoy whose deadline is over lets the request pass.
fn patience(metadata: &MetadataMap) -> Duration {
    let timeout = metadata.get("grpc-timeout");
    let timeout = timeout.map(|value| value.to_str().ok().and_then(timeout_of));
    match timeout {
        None => Duration::MAX,
        Some(timeout) => timeout.unwrap_or_default().saturating_sub(ANSWER_TIME),
    }
}

/// A timeout as gRPC writes it: at most eight digits and a unit.
fn timeout_of(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok().filter(|_| number.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3_600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// What is wrong with a request, in the words of the reference service where it has any.
fn check_shape(request: &RateLimitRequest) -> Result<(), &'static str> {
    if request.domain.is_empty() {
        return Err("rate limit domain must not be empty");
    }
    if request.descriptors.is_empty() {
        return Err("rate limit descriptor list must not be empty");
    }
    if request.descriptors.len() > DESCRIPTORS_MAX {
        return Err("a request has at most 100 descriptors");
    }
    for descriptor in &request.descriptors {
        if descriptor.entries.len() > ENTRIES_MAX {
            return Err("a descriptor has at most 64 entries");
        }
        if descriptor.entries.iter().any(|entry| entry.key.is_empty()) {
            return Err("the key of a descriptor entry must not be empty");
        }
    }
    Ok(())
}

/// A policy's rate as the API tells it; of another window than it knows the unit is unknown, and
/// Envoy leaves it out.
fn current_limit(policy: &Policy) -> Option<RateLimit> {
    let (rate, unit) = match policy.rule() {
        Rule::Bucket(split) => (split.limit().rate().0, unit(split.limit().per())),
        Rule::Deny => (0, Unit::Unknown),
        Rule::Unlimited => return None,
    };
    Some(RateLimit {
        requests_per_unit: saturated(rate),
        unit: unit.into(),
        name: policy.name().to_owned(),
    })
}

fn unit(per: Duration) -> Unit {
    if per.subsec_nanos() > 0 {
        return Unit::Unknown;
    }
    match per.as_secs() {
        1 => Unit::Second,
        60 => Unit::Minute,
        3_600 => Unit::Hour,
        86_400 => Unit::Day,
        604_800 => Unit::Week,
        2_592_000 => Unit::Month,
        31_536_000 => Unit::Year,
        _ => Unit::Unknown,
    }
}

fn whole_seconds(span: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(seconds(span)).unwrap_or(i64::MAX),
        nanos: 0,
    }
}

fn header(key: &str, value: String) -> HeaderValue {
    HeaderValue {
        key: key.to_owned(),
        value,
        raw_value: Vec::new(),
    }
}

/// What the API's small fields can tell of a large number.
fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use tonic::metadata::MetadataValue;

    use super::*;
    use crate::apis::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

    fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
        let entry = |(key, value): &(&str, &str)| Entry {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        };
        RateLimitDescriptor {
            entries: entries.iter().map(entry).collect(),
            ..RateLimitDescriptor::default()
        }
    }

    #[test]
    fn repeated_keys_of_a_descriptor_are_numbered() {
        let descriptor = descriptor(&[("k", "a"), ("other", "b"), ("k", "c"), ("k", "d")]);
        let asked = Asked::new(&descriptor, 0);
        let attributes: Vec<(&str, &str)> = asked
            .attributes
            .iter()
            .map(|(name, value)| (name.as_ref(), *value))
            .collect();
        assert_eq!(
            attributes,
            [("k", "a"), ("other", "b"), ("k#2", "c"), ("k#3", "d")]
        );
    }

    #[test]
    fn hits_of_a_descriptor_win_and_only_there_zero_means_none() {
        let mut descriptor = descriptor(&[("k", "a")]);
        assert_eq!(Asked::new(&descriptor, 0).cost, Tokens(1));
        assert_eq!(Asked::new(&descriptor, 7).cost, Tokens(7));
        descriptor.hits_addend = Some(0);
        assert_eq!(Asked::new(&descriptor, 7).cost, Tokens(0));
        descriptor.hits_addend = Some(u64::MAX);
        assert_eq!(Asked::new(&descriptor, 7).cost, Tokens(EXACT_MAX));
    }

    #[test]
    fn wait_is_shorter_than_the_callers_deadline() {
        let within = |timeout: &'static str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", MetadataValue::from_static(timeout));
            patience(&metadata)
        };
        assert_eq!(patience(&MetadataMap::new()), Duration::MAX);
        assert_eq!(within("20m"), Duration::from_millis(5));
        assert_eq!(within("1S"), Duration::from_millis(985));
        assert_eq!(
            within("99999999H"),
            Duration::from_secs(359_999_996_400) - ANSWER_TIME
        );
        for nonsense in ["", "m", "1", "1s", "-1S", "123456789n", "5000u"] {
            assert_eq!(within(nonsense), Duration::ZERO, "{nonsense}");
        }
    }

    #[test]
    fn case_42_units_are_those_of_the_reference_service() {
        for (seconds, expected) in [
            (1, Unit::Second),
            (60, Unit::Minute),
            (3_600, Unit::Hour),
            (86_400, Unit::Day),
            (604_800, Unit::Week),
            (2_592_000, Unit::Month),
            (31_536_000, Unit::Year),
            (10, Unit::Unknown),
        ] {
            assert_eq!(unit(Duration::from_secs(seconds)), expected);
        }
        assert_eq!(unit(Duration::from_millis(1_500)), Unit::Unknown);
    }

    #[test]
    fn case_44_large_numbers_saturate() {
        assert_eq!(saturated(5_000_000_000), u32::MAX);
        assert_eq!(saturated(7), 7);
    }
}
