//! The server that a client would have asked.

use crate::Refusal;
use crate::request::{ClientRequest, remove_of_connection};
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_RANGE, RANGE};
use axum::response::Response;
use futures::stream::{self, Stream};
use headstart_block::{ByteRange, Error, ErrorKind, Result, to_usize};
use headstart_store::{Redirects, StoreSettings};
use reqwest::Client;
use std::io;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

/// The way to the servers that clients would have asked.
pub(super) struct Upstream {
    /// The client that passes redirects on.
    passing: Client,
    follows: Client,
    first_byte: Duration,
    stall: Duration,
}

impl Upstream {
    pub(super) fn new(stores: &StoreSettings) -> Result<Self> {
        Ok(Self {
            passing: headstart_store::http_client(stores, Redirects::Report)?,
            follows: headstart_store::http_client(stores, Redirects::Follow)?,
            first_byte: stores.first_byte_timeout,
            stall: stores.stall_timeout,
        })
    }

    /// Passes on the server's answer unchanged. `turn` ends with the last of it.
    pub(super) async fn pass(
        &self,
        client_request: &ClientRequest,
        turn: OwnedSemaphorePermit,
    ) -> std::result::Result<Response, Refusal> {
        let request = self
            .passing
            .request(client_request.method.clone(), client_request.url.clone())
            .headers(client_request.headers.clone());
        let about = |status, why: &dyn std::fmt::Display| {
            let host = client_request.url.host_str().unwrap_or_default();
            Refusal(status, format!("no answer from {host}: {why}"))
        };
        let answer = match timeout(self.first_byte, request.send()).await {
            Ok(answer) => answer.map_err(|e| about(StatusCode::BAD_GATEWAY, &e.without_url()))?,
            Err(_) => return Err(about(StatusCode::GATEWAY_TIMEOUT, &"it takes too long")),
        };
        let mut headers = answer.headers().clone();
        remove_of_connection(&mut headers);
        let status = answer.status();
        let mut response = Response::new(Body::from_stream(body(answer, self.stall, turn)));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(response)
    }

    /// Bytes of a blob of `len` bytes, requested with the client's headers.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the server cannot decide; [`ErrorKind::Denied`] if it gives anything else than
    /// those.
    pub(super) async fn read(
        &self,
        client_request: &ClientRequest,
        range: ByteRange,
        len: u64,
    ) -> Result<Bytes> {
        let away = |why: &str| Error::new(ErrorKind::Unavailable, format!("the client's server {why}"));
        let mut headers = client_request.headers.clone();
        let bounds = format!("{}-{}", range.offset(), range.end().saturating_sub(1));
        if let Ok(value) = format!("bytes={bounds}").parse() {
            headers.insert(RANGE, value);
        }
        let request = self.follows.get(client_request.url.clone()).headers(headers);
        let answer = timeout(self.first_byte, request.send()).await.map_err(|_| away("takes too long"))?;
        let mut answer = answer.map_err(|e| away("cannot be asked").caused_by(e.without_url()))?;
        match answer.status() {
            StatusCode::PARTIAL_CONTENT => {}
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => return Err(away("is busy")),
            status if status.is_server_error() => return Err(away("is in trouble")),
            status => {
                let cause = format!("the client's server answers {status}");
                return Err(Error::new(ErrorKind::Denied, cause));
            }
        }
        let expected = format!("bytes {bounds}/{len}");
        if answer.headers().get(CONTENT_RANGE).is_none_or(|range| range.as_bytes() != expected.as_bytes()) {
            return Err(Error::new(ErrorKind::Denied, "the client's server answers with other bytes"));
        }
        let wanted = to_usize(range.len());
        let mut bytes = Vec::with_capacity(wanted);
        while bytes.len() < wanted {
            let chunk = timeout(self.stall, answer.chunk()).await.map_err(|_| away("stopped answering"))?;
            let chunk = chunk.map_err(|e| away("broke off").caused_by(e.without_url()))?;
            let chunk = chunk.ok_or_else(|| away("broke off"))?;
            let fits = chunk.len().min(wanted - bytes.len());
            bytes.extend_from_slice(chunk.get(..fits).unwrap_or_default());
        }
        Ok(bytes.into())
    }
}

/// The bytes of an answer, until a pause is too long.
fn body(
    answer: reqwest::Response,
    stall: Duration,
    turn: OwnedSemaphorePermit,
) -> impl Stream<Item = io::Result<Bytes>> {
    stream::try_unfold((answer, turn), move |(mut answer, turn)| async move {
        match timeout(stall, answer.chunk()).await {
            Ok(Ok(chunk)) => Ok(chunk.map(|chunk| (chunk, (answer, turn)))),
            Ok(Err(error)) => Err(io::Error::other(error.without_url())),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    })
}
