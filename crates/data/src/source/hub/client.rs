//! Requests that try again.

use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use ureq::config::RedirectAuthHeaders;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, http};

use super::{Settings, Token};
use crate::DataError;

/// A connection that says nothing for this long is taken as broken.
const SILENCE: Duration = Duration::from_secs(60);
/// Pages of file lists are below this.
const MOST_JSON: u64 = 64 << 20;

/// How often and how patiently to try again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retry {
    /// Attempts in a row that bring nothing before giving up.
    pub(crate) attempts: u32,
    /// Pause after the first of them; it doubles from there.
    pub(crate) first_pause: Duration,
    /// Longest pause, also when the server asks for a longer one.
    pub(crate) longest_pause: Duration,
}

impl Default for Retry {
    /// About two minutes of trying.
    fn default() -> Self {
        Self { attempts: 8, first_pause: Duration::from_secs(1), longest_pause: Duration::from_secs(60) }
    }
}

/// Why one attempt failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// Trying again may help.
    Again {
        reason: String,
        /// The server's wish (`Retry-After`).
        after: Option<Duration>,
        /// Something was gained: the next attempt counts as the first.
        progress: bool,
    },
    /// It won't.
    Fatal(String),
}

impl Failure {
    pub(super) fn again(reason: impl Into<String>) -> Self {
        Self::Again { reason: reason.into(), after: None, progress: false }
    }
}

/// Speaks HTTP with the Hub.
#[derive(Debug, Clone)]
pub(super) struct Client {
    agent: Agent,
    pub(super) endpoint: String,
    token: Option<Token>,
    pub(super) offline: bool,
    retry: Retry,
}

impl Client {
    pub(super) fn new(settings: &Settings) -> Result<Self, DataError> {
        let mut tls = TlsConfig::builder();
        if let Some(path) = &settings.certificates {
            let pem = std::fs::read(path).map_err(|source| DataError::io(path, source))?;
            let trusted: Vec<Certificate<'static>> = parse_pem(&pem)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect();
            tls = tls.root_certs(RootCerts::new_with_certs(&trusted));
        }
        let agent = Agent::config_builder()
            .tls_config(tls.build())
            .user_agent(concat!("mt-train/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(SILENCE))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .build()
            .new_agent();
        Ok(Self {
            agent,
            endpoint: settings.endpoint.clone(),
            token: settings.token.clone(),
            offline: settings.offline,
            retry: settings.retry,
        })
    }

    /// One attempt at `url`, from byte `start` on; the status is 200 or 206.
    pub(super) fn get(&self, url: &str, start: u64) -> Result<http::Response<Body>, Failure> {
        let mut request = self.agent.get(url);
        if let Some(token) = self.token.as_ref().filter(|_| url.starts_with(&self.endpoint)) {
            request = request.header("authorization", format!("Bearer {}", token.0));
        }
        if start > 0 {
            request = request.header("range", format!("bytes={start}-"));
        }
        let response = request.call().map_err(|error| match error {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::TooManyRedirects => {
                Failure::Fatal(error.to_string())
            }
            error => Failure::again(error.to_string()),
        })?;
        match response.status().as_u16() {
            200 | 206 => Ok(response),
            status @ (401 | 403) => Err(Failure::Fatal(format!(
                "HTTP {status}: not allowed; set HF_TOKEN or hf_access_token, and accept the repository's terms on the Hub"
            ))),
            404 => Err(Failure::Fatal("HTTP 404: not found".into())),
            status @ (408 | 416 | 429 | 500..=599) => {
                let after = header(&response, "retry-after").and_then(|seconds| seconds.parse().ok());
                let after = after.map(Duration::from_secs);
                Err(Failure::Again { reason: format!("HTTP {status}"), after, progress: false })
            }
            status => Err(Failure::Fatal(format!("HTTP {status}"))),
        }
    }

    /// JSON at `url`, and the address of the next page if there is one.
    pub(super) fn json<T: DeserializeOwned>(&self, url: &str) -> Result<(T, Option<String>), String> {
        self.retrying(url, || {
            let mut response = self.get(url, 0)?;
            let next = header(&response, "link").and_then(next_page);
            let body = response.body_mut().with_config().limit(MOST_JSON).read_to_vec();
            let body = body.map_err(|error| Failure::again(error.to_string()))?;
            let value = serde_json::from_slice(&body)
                .map_err(|error| Failure::again(format!("the answer isn't what was expected ({error})")))?;
            Ok((value, next))
        })
    }

    /// Calls `once` until it succeeds, fails for good, or has failed too often in a row.
    pub(super) fn retrying<T>(
        &self,
        what: &str,
        mut once: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, String> {
        let mut tries = 0;
        loop {
            let (reason, after, progress) = match once() {
                Ok(value) => return Ok(value),
                Err(Failure::Fatal(reason)) => return Err(reason),
                Err(Failure::Again { reason, after, progress }) => (reason, after, progress),
            };
            tries = if progress { 1 } else { tries + 1 };
            if tries >= self.retry.attempts {
                return Err(format!("{reason}; gave up after {tries} attempts"));
            }
            let pause =
                after.unwrap_or_else(|| spread(self.retry.first_pause * 2_u32.pow(tries.min(16) - 1)));
            let pause = pause.min(self.retry.longest_pause);
            tracing::warn!("{what}: {reason}; trying again in {:.1} s", pause.as_secs_f64());
            std::thread::sleep(pause);
        }
    }
}

/// A pause of about this length, so that many ranks don't come back at the same moment.
fn spread(pause: Duration) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    pause.mul_f64(0.75 + f64::from(now.subsec_micros() % 1000) / 2000.0)
}

pub(super) fn header<'a>(response: &'a http::Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

/// The address in `<URL>; rel="next"`.
fn next_page(link: &str) -> Option<String> {
    link.split(',').find(|part| part.contains("rel=\"next\"")).and_then(|part| {
        let (_, rest) = part.split_once('<')?;
        rest.split_once('>').map(|(url, _)| url.to_owned())
    })
}
