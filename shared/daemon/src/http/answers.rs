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

/// The cause of a refusal.
#[derive(Debug, Serialize, ToSchema)]
#[schema(description = "Why something could not be done.")]
pub struct Failure {
    /// The error in words: the thing, the cause, and the remedy.
    pub error: String,
}

/// An error as an answer.
pub struct Refusal(pub Error);

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
pub struct Body<T>(pub T);

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
pub struct UrlPath<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for UrlPath<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(named)| Self(named)).map_err(|_| no_such(&parts.uri))
    }
}

/// The refusal of a request with a status other than that of an error.
pub fn refused(status: StatusCode, why: &str) -> Response {
    (status, Json(Failure { error: format!("{why}; /openapi.json says what can be asked for") }))
        .into_response()
}

/// The answer for a path that no route has.
pub async fn nothing(uri: Uri) -> Response {
    no_such(&uri)
}

fn no_such(uri: &Uri) -> Response {
    refused(StatusCode::NOT_FOUND, &format!("there is nothing at {}", uri.path()))
}

/// The answer for a method that a path does not have at this server.
pub async fn not_here(method: Method, uri: Uri) -> Response {
    let why = format!("{method} of {} is not for here, or over the Unix socket alone", uri.path());
    refused(StatusCode::METHOD_NOT_ALLOWED, &why)
}

/// The result of a handler.
pub type Answer<T> = Result<T, Refusal>;
