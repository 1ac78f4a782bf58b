//! The refusal of requests: a text, with a status for the kind.

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use headstart_block::{Error, ErrorKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

/// Why something could not be done.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Failure {
    /// In words: the thing, the cause, and what to do.
    pub(crate) error: String,
}

/// An error as an answer.
pub(crate) struct Refusal(pub(crate) Error);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self.0.kind() {
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(Failure { error: self.0.to_string() })).into_response()
    }
}

/// A request's body. A malformed one is refused in the same form as other errors.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        match Json::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(refused(rejection.status(), &rejection.body_text())),
        }
    }
}

/// The parameter in a path. A malformed one is answered as not found.
pub(crate) struct UrlPath<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for UrlPath<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(named)| Self(named)).map_err(|_| no_such(&parts.uri))
    }
}

pub(crate) fn refused(status: StatusCode, why: &str) -> Response {
    (status, Json(Failure { error: format!("{why}; /openapi.json says what can be asked for") }))
        .into_response()
}

pub(crate) async fn nothing(uri: Uri) -> Response {
    no_such(&uri)
}

fn no_such(uri: &Uri) -> Response {
    refused(StatusCode::NOT_FOUND, &format!("there is nothing at {}", uri.path()))
}

pub(crate) async fn not_here(method: Method, uri: Uri) -> Response {
    let why = format!("{method} of {} is not for here, or over the Unix socket alone", uri.path());
    refused(StatusCode::METHOD_NOT_ALLOWED, &why)
}

/// The result of a handler.
pub(crate) type Answer<T> = Result<T, Refusal>;
