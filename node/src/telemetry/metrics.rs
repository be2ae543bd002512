//! Every metric of the node. Label values come from the configuration and from enums, never from
//! clients, and every series exists from the start: a request only adds to atomic counters.

use std::fmt::{self, Write};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use region::bound::Bound;
use region::limiter::{Answer, Verdict};
use region::policy::{OnStoreFailure, Policy, PolicySet};
use region::store::StoreError;

use super::timings::Timings;

/// An interface that clients or operators connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// The HTTP front.
    Http,
    /// The gRPC front.
    Rls,
    /// The admin interface.
    Admin,
}

/// How a request to a front ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// HTTP: it may pass.
    HttpAllowed,
    /// HTTP: it is over a limit.
    HttpDenied,
    /// HTTP: it is denied because the store does not answer.
    HttpUnavailable,
    /// HTTP: it makes no sense.
    HttpMalformed,
    /// HTTP: it is too large.
    HttpTooLarge,
    /// HTTP: its body did not arrive in time.
    HttpTimeout,
    /// HTTP: there is nothing at this path, or not with this method.
    HttpNotFound,
    /// RLS: it may pass.
    RlsOk,
    /// RLS: it is over a limit, or denied because the store does not answer.
    RlsOverLimit,
    /// RLS: it makes no sense.
    RlsMalformed,
}

/// Every metric of the node.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    policies: Vec<PolicyMetrics>,
    requests: Vec<Counter>,
    durations: [Timings; 2],
    listeners: [ListenerMetrics; 3],
    /// Descriptors and requests that no policy was for.
    pub unmatched: Counter,
    /// Limit overrides of RLS descriptors, which are not supported yet.
    pub overrides_ignored: Counter,
}

/// What is counted of a listener's connections.
#[derive(Clone, Debug, Default)]
pub struct ListenerMetrics {
    /// Connections that could not be accepted.
    pub accept_errors: Counter,
    /// Connections that are open.
    pub connections: Gauge,
}

#[derive(Clone, Debug)]
struct PolicyMetrics {
    allowed: Counter,
    denied: Counter,
    fallback: [Counter; StoreError::ALL.len()],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Decided {
    domain: String,
    policy: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FellBack {
    domain: String,
    policy: String,
    reason: &'static str,
    mode: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Bounded {
    domain: String,
    policy: String,
    source: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Requested {
    api: Api,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Through {
    api: Api,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Identity {
    name: String,
    region: String,
}

impl Metrics {
    /// All metrics of a node, at zero. `others` are those of parts that count for themselves.
    #[must_use]
    pub fn new(
        (region, name): (&str, &str),
        policies: &PolicySet,
        others: Vec<Box<dyn Collector>>,
    ) -> Self {
        let mut registry = Registry::with_prefix("tidegate");
        let metrics = Self {
            policies: policy_metrics(&mut registry, policies),
            requests: request_metrics(&mut registry),
            durations: duration_metrics(&mut registry),
            listeners: listener_metrics(&mut registry),
            unmatched: Counter::default(),
            overrides_ignored: Counter::default(),
            registry: Registry::default(),
        };
        registry.register(
            "unmatched",
            "Requests and descriptors that no policy was for",
            metrics.unmatched.clone(),
        );
        registry.register(
            "overrides_ignored",
            "Limit overrides of descriptors that were not applied",
            metrics.overrides_ignored.clone(),
        );
        constants(&mut registry, (region, name), policies);
        bounds(&mut registry, policies);
        for other in others {
            registry.register_collector(other);
        }
        Self {
            registry,
            ..metrics
        }
    }

    /// Counts an answer to a check, and each policy's verdict in it.
    pub fn answered(&self, answer: &Answer) {
        for verdicts in &answer.subjects {
            if verdicts.is_empty() {
                self.unmatched.inc();
            }
            for verdict in verdicts {
                self.decided(verdict);
            }
        }
    }

    /// Counts a request to a front by its end.
    pub fn requested(&self, code: Code) {
        if let Some(counter) = self.requests.get(code as usize) {
            counter.inc();
        }
    }

    /// Takes note of how long a decision took.
    pub fn took(&self, api: Api, span: Duration) {
        if let Some(timings) = self.durations.get(api as usize) {
            timings.observe(span);
        }
    }

    /// What is counted of the listener of an interface.
    #[must_use]
    pub const fn listener(&self, api: Api) -> &ListenerMetrics {
        let [http, rls, admin] = &self.listeners;
        match api {
            Api::Http => http,
            Api::Rls => rls,
            Api::Admin => admin,
        }
    }

    /// All metrics in the `OpenMetrics` text format.
    ///
    /// # Errors
    /// If a collector fails.
    pub fn render(&self) -> Result<String, fmt::Error> {
        let mut text = String::with_capacity(16 * 1024);
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    fn decided(&self, verdict: &Verdict) {
        let Some(policy) = self.policies.get(verdict.policy) else {
            return;
        };
        if verdict.decision.allowed {
            policy.allowed.inc();
        } else {
            policy.denied.inc();
        }
        let counter = verdict.fallback.and_then(|error| {
            let place = StoreError::ALL.iter().position(|reason| *reason == error)?;
            policy.fallback.get(place)
        });
        if let Some(counter) = counter {
            counter.inc();
        }
    }
}

impl Code {
    /// Every end of a request, in the order of the variants.
    pub const ALL: [Self; 10] = [
        Self::HttpAllowed,
        Self::HttpDenied,
        Self::HttpUnavailable,
        Self::HttpMalformed,
        Self::HttpTooLarge,
        Self::HttpTimeout,
        Self::HttpNotFound,
        Self::RlsOk,
        Self::RlsOverLimit,
        Self::RlsMalformed,
    ];

    const fn labels(self) -> (Api, &'static str) {
        match self {
            Self::HttpAllowed => (Api::Http, "200"),
            Self::HttpDenied => (Api::Http, "429"),
            Self::HttpUnavailable => (Api::Http, "503"),
            Self::HttpMalformed => (Api::Http, "400"),
            Self::HttpTooLarge => (Api::Http, "413"),
            Self::HttpTimeout => (Api::Http, "408"),
            Self::HttpNotFound => (Api::Http, "404"),
            Self::RlsOk => (Api::Rls, "ok"),
            Self::RlsOverLimit => (Api::Rls, "over_limit"),
            Self::RlsMalformed => (Api::Rls, "invalid_argument"),
        }
    }
}

impl EncodeLabelValue for Api {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        encoder.write_str(match self {
            Self::Http => "http",
            Self::Rls => "rls",
            Self::Admin => "admin",
        })
    }
}

fn policy_metrics(registry: &mut Registry, policies: &PolicySet) -> Vec<PolicyMetrics> {
    let decisions = Family::<Decided, Counter>::default();
    let fallback = Family::<FellBack, Counter>::default();
    registry.register(
        "decisions",
        "What policies decided; a request is decided by every policy that applies",
        decisions.clone(),
    );
    registry.register(
        "fallback",
        "Decisions without the store, by what was wrong with it and what the policy says to do",
        fallback.clone(),
    );
    let decided = |policy: &Policy, outcome| {
        decisions.get_or_create_owned(&Decided {
            domain: policy.domain().to_owned(),
            policy: policy.name().to_owned(),
            outcome,
        })
    };
    let fell_back = |policy: &Policy, error: StoreError| {
        fallback.get_or_create_owned(&FellBack {
            domain: policy.domain().to_owned(),
            policy: policy.name().to_owned(),
            reason: error.reason(),
            mode: mode(policy.on_store_failure()),
        })
    };
    let metrics = policies.policies().iter().map(|policy| PolicyMetrics {
        allowed: decided(policy, "allowed"),
        denied: decided(policy, "denied"),
        fallback: StoreError::ALL.map(|error| fell_back(policy, error)),
    });
    metrics.collect()
}

fn request_metrics(registry: &mut Registry) -> Vec<Counter> {
    let requests = Family::<Requested, Counter>::default();
    registry.register("requests", "Requests by how they ended", requests.clone());
    let counters = Code::ALL.iter().map(|code| {
        let (api, code) = code.labels();
        requests.get_or_create_owned(&Requested { api, code })
    });
    counters.collect()
}

fn duration_metrics(registry: &mut Registry) -> [Timings; 2] {
    let durations = Family::<Through, Timings>::default();
    registry.register(
        "decision_duration_seconds",
        "From the request's arrival to its answer",
        durations.clone(),
    );
    [Api::Http, Api::Rls].map(|api| durations.get_or_create_owned(&Through { api }))
}

fn listener_metrics(registry: &mut Registry) -> [ListenerMetrics; 3] {
    let errors = Family::<Through, Counter>::default();
    let connections = Family::<Through, Gauge>::default();
    registry.register(
        "accept_errors",
        "Connections that could not be accepted",
        errors.clone(),
    );
    registry.register("connections", "Open connections", connections.clone());
    [Api::Http, Api::Rls, Api::Admin].map(|api| ListenerMetrics {
        accept_errors: errors.get_or_create_owned(&Through { api }),
        connections: connections.get_or_create_owned(&Through { api }),
    })
}

fn constants(registry: &mut Registry, (region, name): (&str, &str), policies: &PolicySet) {
    let build = Family::<Build, Gauge>::default();
    let version = env!("CARGO_PKG_VERSION");
    build.get_or_create_owned(&Build { version }).set(1);
    registry.register("build_info", "The version", build);
    let node = Family::<Identity, Gauge>::default();
    let identity = Identity {
        name: name.to_owned(),
        region: region.to_owned(),
    };
    node.get_or_create_owned(&identity).set(1);
    registry.register("node_info", "The node", node);
    let rules: Gauge = Gauge::default();
    rules.set(i64::try_from(policies.policies().len()).unwrap_or(i64::MAX));
    registry.register("rules_loaded", "Policies in force", rules);
    let config: Gauge = Gauge::default();
    config.set(1);
    registry.register(
        "config_last_reload_ok",
        "Whether the newest configuration is the one in force",
        config,
    );
}

/// The figures of `tidegate overrun-bound`; infinite where there is no bound.
fn bounds(registry: &mut Registry, policies: &PolicySet) {
    let figures = Family::<Bounded, Gauge<f64, AtomicU64>>::default();
    for policy in policies.policies() {
        let bound = Bound::of(policy);
        for line in bound.iter().flat_map(Bound::lines) {
            let figure = figures.get_or_create_owned(&Bounded {
                domain: policy.domain().to_owned(),
                policy: policy.name().to_owned(),
                source: line.source.name(),
            });
            figure.set(line.tokens.map_or(f64::INFINITY, |tokens| whole(tokens.0)));
        }
    }
    registry.register(
        "overrun_bound_tokens",
        "The most tokens that a fault adds over all regions: each time that it happens, or in each \
         period of the limit that it lasts",
        figures,
    );
}

#[expect(clippy::cast_precision_loss, reason = "rounding begins at 2^53 tokens")]
const fn whole(tokens: u64) -> f64 {
    tokens as f64
}

const fn mode(on_store_failure: OnStoreFailure) -> &'static str {
    match on_store_failure {
        OnStoreFailure::Closed => "closed",
        OnStoreFailure::Open => "open",
        OnStoreFailure::Local => "local",
    }
}
