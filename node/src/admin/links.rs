//! `PUT /v1/links`: what the link shaper does from now on.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use region::store::Store;
use serde::Deserialize;
use serde_json::json;

use super::{Admin, Refused};
use crate::config::{LinkConfig, loss};

/// The largest body.
const BODY_MAX: usize = 64 * 1024;

/// One direction between two regions, written as in `gossip.links`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    from: String,
    to: String,
    delay: Option<String>,
    jitter: Option<String>,
    loss: Option<String>,
    #[serde(default)]
    cut: bool,
}

pub(super) async fn replace<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    request: Request,
) -> Response {
    let Ok(body) = to_bytes(request.into_body(), BODY_MAX).await else {
        let reason = format!("the body must have at most {BODY_MAX} bytes");
        return Refused(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason).into_response();
    };
    let regions = admin.limiter.policies();
    let known = |name: &str| regions.region(name).is_some();
    let links = match read(&body, known) {
        Ok(links) => links,
        Err(reason) => {
            return Refused(StatusCode::BAD_REQUEST, "invalid_links", reason).into_response();
        }
    };
    let count = links.len();
    if let Err(off) = admin.cluster.shape(links) {
        return Refused(StatusCode::CONFLICT, "shaper_off", off.to_string()).into_response();
    }
    tracing::warn!(links = count, "links are shaped");
    Json(json!({ "links": count })).into_response()
}

fn read(body: &[u8], known: impl Fn(&str) -> bool) -> Result<Vec<LinkConfig>, String> {
    let links: Vec<Link> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let span = |text: Option<&String>| {
        text.map_or(Ok(Duration::ZERO), |text| region::reader::duration(text))
    };
    let links = links.iter().map(|link| {
        if let Some(name) = [&link.from, &link.to].into_iter().find(|name| !known(name)) {
            return Err(format!("`{name}` is not a region"));
        }
        Ok(LinkConfig {
            from: link.from.clone(),
            to: link.to.clone(),
            delay: span(link.delay.as_ref())?,
            jitter: span(link.jitter.as_ref())?,
            loss_ppm: link.loss.as_deref().map_or(Ok(0), loss)?,
            cut: link.cut,
        })
    });
    links.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_as_in_the_configuration() {
        let known = |name: &str| ["us", "eu"].contains(&name);
        let body = br#"[{"from":"us","to":"eu","delay":"40ms","loss":"0.5%"}]"#;
        let expected = LinkConfig {
            from: "us".to_owned(),
            to: "eu".to_owned(),
            delay: Duration::from_millis(40),
            loss_ppm: 5_000,
            ..LinkConfig::default()
        };
        assert_eq!(read(body, known), Ok(vec![expected]));
        for wrong in [
            &br#"[{"from":"us","to":"mars"}]"#[..],
            br#"[{"from":"us","to":"eu","loss":"lots"}]"#,
            br#"[{"from":"us","to":"eu","delay":"40"}]"#,
            br#"[{"from":"us","to":"eu","speed":1}]"#,
        ] {
            assert!(read(wrong, known).is_err());
        }
    }
}
